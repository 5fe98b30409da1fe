"""Every private name of PyTorch is in the register, exists in the installed PyTorch, and is used nowhere else."""

import ast
import importlib
import pathlib
import re
import sys
import types

import check
import pytest
import torch

from helpers import private_names

HELPERS = pathlib.Path(__file__).parents[2] / "helpers"
REGISTER = [*private_names.REGISTER]
PATHS = {entry.path for entry in REGISTER}
OWN = {"_getframe": "sys", "_repr_mimebundle_": "super()"}  # private names of others than PyTorch
OPERATORS = {"_fused_rms_norm"}  # a kernel is registered under the operator's name
OVERRIDDEN = {entry.path.rpartition(".")[2] for entry in REGISTER if "FakeTensorMode._" in entry.path}


def private_names_in(path: pathlib.Path) -> list[str]:
    """Underscore names that a file takes from PyTorch, asks of an object that is not its own, or spells as a string,
    and attributes of PyTorch that it replaces and that are not in the register."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            parts = [*node.module.split("."), *(name.name for name in node.names)]
            found += [".".join(parts)] * any(part.startswith("_") for part in parts)
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("torch") and "._" in name.name]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            inherited = owner == "super()" and node.attr in OVERRIDDEN
            if owner not in ("self", "me", "cls") and OWN.get(node.attr) != owner and not inherited:
                found.append(f"{owner}.{node.attr}")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            place = re.sub(r"^nn\.", "torch.nn.", ast.unparse(node))
            found += [place] * (place.startswith("torch.") and place not in PATHS)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"_[a-z]\w*", str(node.value)):  # for getattr, say
            found += [node.value] * (node.value not in OPERATORS)
    return found


@pytest.mark.parametrize("path", sorted(HELPERS.rglob("*.py")), ids=lambda path: str(path.relative_to(HELPERS)))
def test_no_other_file_reaches_into_pytorch(path):
    if path.name != "torch_private.py":
        assert not private_names_in(path)


@pytest.mark.parametrize("code, found", [
    ("from torch._subclasses.fake_tensor import FakeTensor", ["torch._subclasses.fake_tensor.FakeTensor"]),
    ("import torch._dynamo", ["torch._dynamo"]), ("x._version", ["x._version"]), ("self._own, x.__class__", []),
    ("torch.nn.Module._apply", ["torch.nn.Module._apply"]), ("getattr(x, '_version')", ["_version"]),
    ("torch.load = other", ["torch.load"]), ("torch.save, x = torch.load, 1", [])])
def test_a_private_name_is_seen(code, found, tmp_path):
    file = tmp_path / "code.py"
    file.write_text(code)
    assert private_names_in(file) == found


@pytest.mark.parametrize("entry", REGISTER, ids=lambda entry: entry.path)
def test_an_entry_says_everything_and_is_there(entry):
    assert entry.path.startswith("torch.") and entry.purpose and entry.without and entry.since.startswith("2.")
    assert not entry.is_missing


def test_no_name_is_registered_twice():
    assert len(PATHS) == len(REGISTER)


def owner_of(entry):
    return private_names.Private(entry.path.rpartition(".")[0], "", "").find()


# What can be taken away as if it had never been there: not what C++ or an operator's name brings back.
REMOVABLE = [entry for entry in REGISTER if "._" in entry.path and not entry.path.startswith("torch.ops.")
             and isinstance(owner_of(entry), types.ModuleType) and not entry.cuda]


@pytest.mark.parametrize("entry", REMOVABLE, ids=lambda entry: entry.path)
def test_helpers_can_be_imported_without_it_and_say_so(entry, monkeypatch):
    monkeypatch.delattr(owner_of(entry), entry.path.rpartition(".")[2])
    for module in [*sys.modules]:
        if module.partition(".")[0] == "helpers":
            monkeypatch.delitem(sys.modules, module)
    importlib.import_module("helpers")
    said = importlib.import_module("helpers.private_names").first_missing()
    assert said and f"has no {entry.path}, which the project needs for {entry.purpose}; without it" in said


def test_make_check_names_the_first_that_is_missing(monkeypatch, capsys):
    wind = private_names.Private("torch._gone._with_the_wind", "tensors without data", "nothing can be simulated")
    monkeypatch.setattr(private_names, "REGISTER", [wind, *REGISTER])
    assert check.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and said[1] == f"inside:   {private_names.sentence(wind)}"
    assert said[1].count(". ") == 0 and "has no torch._gone._with_the_wind, which the project needs for" in said[1]


def test_a_missing_name_says_so_when_it_is_used():
    stand_in = private_names.private("torch._C._not_there", "nothing", "nothing breaks")
    place = private_names.place("torch.nn.Module._not_there", "nothing", "nothing breaks")
    del private_names.REGISTER[-2:]
    assert stand_in.default and not isinstance(1, stand_in)
    with pytest.raises(RuntimeError, match=r"has no torch\._C\._not_there, which the project needs for nothing"):
        type("Hooks", (stand_in,), {})()
    with pytest.raises(RuntimeError, match=r"has no torch\.nn\.Module\._not_there"):
        place(1).__enter__()
    assert not hasattr(torch.nn.Module, "_not_there")
