"""How a private name of PyTorch is registered, found, and reported when it is gone; `torch_private` is the list."""

import contextlib
import dataclasses
import importlib
import operator
import typing

import torch

OLDEST = "2.11"
GONE = AttributeError, ImportError, TypeError  # what it takes to find nothing; TypeError: a factory lost an argument


@dataclasses.dataclass(frozen=True)
class Private:
    """path: "torch._C._swap_tensor_impl", the dotted place; purpose: what the project does with it; without: what
    breaks if it is gone; since: the first PyTorch that the project has seen it in. instance: makes an object that has
    the attribute, where its class has not. cuda: only builds for CUDA have it."""

    path: str
    purpose: str
    without: str
    since: str = OLDEST
    instance: typing.Callable | None = None
    cuda: bool = False

    def find(self):
        """The object; AttributeError or ImportError where this PyTorch lacks it."""
        if self.instance is not None:
            return getattr(self.instance(), self.path.rpartition(".")[2])
        head, *rest = self.path.split(".")
        found, name = importlib.import_module(head), head
        for part in rest:
            name += "." + part
            try:
                found = getattr(found, part)
            except AttributeError:  # a module that is not loaded, or whose package hides it
                found = importlib.import_module(name)
        return found

    @property
    def is_missing(self) -> bool:
        if self.cuda and not torch.version.cuda:
            return False
        try:
            self.find()
        except GONE:
            return True
        return False


REGISTER: list[Private] = []


class Missing(type):
    """Stands where a name is missing: may be asked for names, be a base class and be compared, and says so when called.

    So the rest of the project can be imported, and `make check` can say what is missing.
    """

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args, **kwargs):
        raise RuntimeError(sentence(cls.entry))


def private(path: str, purpose: str, without: str, **known) -> typing.Any:
    """Register a name and return what it names, or a class of type `Missing`."""
    entry = Private(path, purpose, without, **known)
    REGISTER.append(entry)
    try:
        return entry.find()
    except GONE:
        return Missing(path.rpartition(".")[2], (Exception,), {"entry": entry})


def attribute(path: str, purpose: str, without: str, **known):
    """Register an attribute of instances; returns what reads it: `attribute("torch.Tensor._version", ...)(tensor)`."""
    REGISTER.append(Private(path, purpose, without, **known))
    return operator.attrgetter(path.rpartition(".")[2])


def place(path: str, purpose: str, without: str, **known):
    """Register an attribute that the project replaces for a time; returns `replaced`: `with replaced(new): ...`, whose
    `as` is what stood there. It is looked for when it is replaced: to import where it is may take long."""
    entry, (owner, _, name) = Private(path, purpose, without, **known), path.rpartition(".")
    REGISTER.append(entry)

    @contextlib.contextmanager
    def replaced(new):
        if entry.is_missing:
            raise RuntimeError(sentence(entry))
        holder = dataclasses.replace(entry, path=owner).find()
        before = getattr(holder, name)
        setattr(holder, name, new)
        try:
            yield before
        finally:
            setattr(holder, name, before)

    return replaced


def sentence(entry: Private) -> str:
    return (f"PyTorch {torch.__version__} has no {entry.path}, which the project needs for {entry.purpose}; "
            f"without it {entry.without} (see helpers/torch_private.py).")


def first_missing() -> str | None:
    """One sentence for the first name that the installed PyTorch lacks; None where it has all."""
    return next((sentence(entry) for entry in REGISTER if entry.is_missing), None)
