"""The register of private PyTorch: every undocumented name that the project uses, and nothing else reaches one.

An entry says what the name is for, what breaks without it, and since which PyTorch the project has seen it (2.11 is the
oldest that it was tried with). A name that the installed PyTorch lacks fails where it is used, not on import, and
`first_missing()` says so in one sentence: `make check` prints it.
"""

import contextlib
import dataclasses
import functools
import importlib
import operator
import typing

import torch

OLDEST = "2.11"


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
        """The object; AttributeError or ModuleNotFoundError where this PyTorch lacks it."""
        if self.instance is not None:
            return getattr(self.instance(), self.path.rpartition(".")[2])
        head, *rest = self.path.split(".")
        found, name = importlib.import_module(head), head
        for part in rest:
            name += "." + part
            if not hasattr(found, part):
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(name)
            found = getattr(found, part)
        return found


REGISTER: list[Private] = []


def private(path: str, purpose: str, without: str, **known) -> typing.Any:
    """Register a name and return what it names; where it is missing, something that says so when it is called."""
    entry = Private(path, purpose, without, **known)
    REGISTER.append(entry)
    try:
        return entry.find()
    except (AttributeError, ModuleNotFoundError):
        return functools.partial(_missing, entry)


def attribute(path: str, purpose: str, without: str, **known):
    """Register an attribute of instances; returns what reads it: `attribute("torch.Tensor._version", ...)(tensor)`."""
    private(path, purpose, without, **known)
    return operator.attrgetter(path.rpartition(".")[2])


def place(path: str, purpose: str, without: str, **known):
    """Register an attribute that the project replaces for a time; returns `replaced`: `with replaced(new): ...`, whose
    `as` is what stood there."""
    private(path, purpose, without, **known)
    entry, (owner, _, name) = REGISTER[-1], path.rpartition(".")

    @contextlib.contextmanager
    def replaced(new):
        holder = dataclasses.replace(entry, path=owner).find()
        before = getattr(holder, name)
        setattr(holder, name, new)
        try:
            yield before
        finally:
            setattr(holder, name, before)

    return replaced


def _missing(entry: Private, *args, **kwargs):
    raise RuntimeError(sentence(entry))


def sentence(entry: Private) -> str:
    return (f"PyTorch {torch.__version__} has no {entry.path}, which the project needs for {entry.purpose}; "
            f"without it {entry.without} (see helpers/torch_private.py).")


def first_missing() -> str | None:
    """One sentence for the first name that the installed PyTorch lacks; None where it has all."""
    for entry in REGISTER:
        try:
            entry.find()
        except (AttributeError, ModuleNotFoundError):
            if not entry.cuda or torch.version.cuda:
                return sentence(entry)
    return None


# FakeTensors: tensors with shape, dtype and device, and no data.
FAKE = "torch._subclasses.fake_tensor."
FakeTensor = private(FAKE + "FakeTensor", "tensors without data", "nothing can be simulated")
FakeTensorMode = private(FAKE + "FakeTensorMode", "running operators without data", "nothing can be simulated")
DataDependentOutputException = private(
    FAKE + "DataDependentOutputException", "code that asks for a value", "such code fails without a clear sentence")
DynamicOutputShapeException = private(
    FAKE + "DynamicOutputShapeException", "shapes that depend on values", "such code fails without a clear sentence")
unset_fake_temporarily = private(
    FAKE + "unset_fake_temporarily", "computing with data within a run", "host tensors lose their values")
for _name, _purpose in {
        "_should_skip_dynamo": "leaving out a wrapper for torch.compile around every operator",
        "_make_cache_entry": "remembering what an operator gave", "_output_from_cache_entry": "giving it again",
        "_prep_args_for_hash": "a shorter key to what is remembered",
        "_get_output_tensor_from_cache_entry": "making the same tensor again in fewer steps"}.items():
    private(f"{FAKE}FakeTensorMode.{_name}", _purpose, "a simulated step takes longer")
make_subclass = private(
    "torch.Tensor._make_subclass", "making a FakeTensor in fewer steps", "a simulated step takes longer")
DisableTorchDispatch = private(
    "torch._C._DisableTorchDispatch", "making a tensor's shape without being asked back", "fast_mode.py fails")
set_warn_deprecated_on_mutable_data_ptr = private(
    "torch._C._set_warn_deprecated_on_mutable_data_ptr", "guarding data that is not there", "fast_mode.py fails")
set_throw_on_mutable_data_ptr = private(
    "torch._C._set_throw_on_mutable_data_ptr", "guarding data that is not there", "fast_mode.py fails")
swap_tensor_impl = private(
    "torch._C._swap_tensor_impl", "moving a parameter that keeps its identity", "module.to(device) fails")

# The device, and how operators find their kernels.
PrivateUse1Hooks = private("torch._C._acc.PrivateUse1Hooks", "a device written in Python", "there is no device `sim`")
BaseDeviceGuard = private("torch._C._acc.DeviceGuard", "a device written in Python", "there is no device `sim`")
setup_backend = private("torch.utils.backend_registration._setup_privateuseone_for_python_backend",
                        "registering a device written in Python", "there is no device `sim`")
DeviceType = private("torch._C._autograd.DeviceType", "naming the device to C++", "there is no device `sim`")
destroy_library = attribute("torch.library.Library._destroy", "registering again after a reload",
                            "a notebook that reloads helpers warns")
only_lift_cpu_tensors = private("torch._C._only_lift_cpu_tensors", "torch.tensor(data, device=...)",
                                "a tensor made from data on the card fails")
set_only_lift_cpu_tensors = private("torch._C._set_only_lift_cpu_tensors", "torch.tensor(data, device=...)",
                                    "a tensor made from data on the card fails")
DispatchKeySet = private("torch._C.DispatchKeySet", "autocast on the device", "there is no mixed precision")
DispatchKey = private("torch._C.DispatchKey", "autocast on the device", "there is no mixed precision")
ExcludeDispatchKeyGuard = private("torch._C._ExcludeDispatchKeyGuard", "leaving autocast for the operator itself",
                                  "autocast calls itself for ever")
sdp_priority_order = private("torch._C._get_sdp_priority_order", "the order in which attention kernels are tried",
                             "scaled_dot_product_attention fails")
schema_of = attribute("torch._ops.OpOverload._schema", "the names of an operator's arguments",
                      "autocast and the roofline fail", instance=lambda: torch.ops.aten.add.Tensor)
packet_of = attribute("torch._ops.OpOverload._overloadpacket", "the formula of an operator's FLOPs",
                      "no operations are counted", instance=lambda: torch.ops.aten.add.Tensor)
_KERNEL = "the operator that CUDA runs", "softmax, views or attention fail"
softmax = private("torch.ops.aten._softmax", *_KERNEL)
log_softmax = private("torch.ops.aten._log_softmax", *_KERNEL)
unsafe_view = private("torch.ops.aten._unsafe_view", *_KERNEL)
flash_attention = private("torch.ops.aten._scaled_dot_product_flash_attention", *_KERNEL)
efficient_attention = private("torch.ops.aten._scaled_dot_product_efficient_attention", *_KERNEL)
cudnn_attention = private("torch.ops.aten._scaled_dot_product_cudnn_attention", *_KERNEL)
math_attention = private("torch.ops.aten._scaled_dot_product_attention_math", *_KERNEL)
unscale = private("torch._amp_foreach_non_finite_check_and_unscale_", "following a GradScaler",
                  "float16 training asks for values")
update_scale = private("torch._amp_update_scale_", "following a GradScaler", "float16 training asks for values")

# Autograd, modules and optimizers.
current_graph_task_id = private("torch._C._current_graph_task_id", "knowing that a backward pass runs",
                                "no phase is called backward, and no role is right")
engine_run_backward = place("torch.autograd._engine_run_backward", "errors that are raised in backward",
                            "an out-of-memory error in backward ends the process")
module_apply = place("torch.nn.Module._apply", "module.to(device)", "a module cannot move to the simulated card")
truncated_normal = place("torch.nn.init._no_grad_trunc_normal_", "initialisers that look at data",
                         "transformers' models cannot be built in a run")
parameters_of = attribute("torch.nn.Module._parameters", "module.to(device)", "a module cannot move",
                          instance=torch.nn.Identity)
buffers_of = attribute("torch.nn.Module._buffers", "module.to(device)", "a module cannot move",
                       instance=torch.nn.Identity)
backward_hooks_of = attribute("torch.Tensor._backward_hooks", "hooks of a parameter that moves",
                              "a moved parameter loses its hooks")
accumulate_hooks_of = attribute("torch.Tensor._post_accumulate_grad_hooks", "hooks of a parameter that moves",
                                "a moved parameter loses its hooks")


def hooks_of(tensor) -> tuple:
    """What a tensor calls in backward: hooks on its gradient, and after its gradient was accumulated."""
    return backward_hooks_of(tensor), accumulate_hooks_of(tensor)


def set_hooks(tensor, hooks: tuple) -> None:
    """Give a tensor the hooks that `hooks_of` found, where there were any."""
    for name, found in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), hooks, strict=True):
        if found:
            setattr(tensor, name, found)


def apply_to(module, fn) -> None:
    """`module._apply(fn)`, whoever overrides it."""
    module._apply(fn)


version_of = attribute("torch.Tensor._version", "a scalar whose value is known", "a value is believed for too long")
is_view = private("torch.Tensor._is_view", "the cache of cast weights", "casts of views are kept as well")
address_of = attribute("torch.UntypedStorage._cdata", "telling storages apart", "no memory is counted")
foreach_utils = private("torch.utils._foreach_utils", "optimizers that work on lists of tensors",
                        "an optimizer step needs less than on CUDA")
TorchDispatchMode = private("torch.utils._python_dispatch.TorchDispatchMode", "seeing every operator",
                            "nothing is recorded")
tree_iter = private("torch.utils._pytree.tree_iter", "tensors in nested containers", "optimizer state has no role")

# The CUDA card.
clear_cublas_workspaces = private("torch._C._cuda_clearCublasWorkspaces", "a clean CUDA card before a run",
                                  "two workspaces of an earlier run are counted", cuda=True)
record_memory_history = private("torch.cuda.memory._record_memory_history", "a CUDA card's run that is recorded",
                                "no memory snapshot from a CUDA card")
memory_snapshot = private("torch.cuda.memory._snapshot", "a CUDA card's run that is recorded",
                          "no memory snapshot from a CUDA card")
