"""The register of private PyTorch: every undocumented name that the project uses, and nothing else reaches one.

An entry says what the name is for and what breaks without it; all are in PyTorch 2.11, the oldest that was tried, and a
later one says since when. A name that the installed PyTorch lacks fails where it is used, not on import, and `make
check` says in one sentence which it is. How that works is in private_names.py.
"""

import importlib

import torch
from torch import nn, ops

from helpers.private_names import attribute, place, private

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


def _fake():
    return FakeTensor(FakeTensorMode(), torch.empty(0, device="meta"), torch.device("cpu"))


# Names of these objects that have no underscore and no documentation either: used as they are.
attribute(FAKE + "FakeTensor.fake_device", "the device of a tensor without calling an operator",
          "no operator runs", instance=_fake)
attribute(FAKE + "FakeTensor.fake_mode", "the mode of a tensor", "no operator runs", instance=_fake)
attribute(FAKE + "FakeTensor.constant", "numbers that are known", "host tensors lose their values", instance=_fake)
attribute(FAKE + "FakeTensorMode.in_kernel_invocation", "answering C++ where a tensor is", "no operator runs",
          instance=lambda: FakeTensorMode())
attribute(FAKE + "FakeTensorMode.avoid_device_init", "a device that holds no data", "a constant on the card fails")
for _name in ("inplace_idx", "metadata", "view_idx"):
    attribute(f"{FAKE}_DispatchCacheEntryOutputInfo.{_name}", "what a remembered operator gave", "fast_mode.py fails")
attribute(FAKE + "FakeTensorMode._allow_unsafe_data_ptr_access", "guarding data that is not there",
          "a read of such data warns", instance=lambda: FakeTensorMode())
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
                      "autocast and the roofline fail", instance=lambda: ops.aten.add.Tensor)
packet_of = attribute("torch._ops.OpOverload._overloadpacket", "the formula of an operator's FLOPs",
                      "no operations are counted", instance=lambda: ops.aten.add.Tensor)
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
                          instance=nn.Identity)
buffers_of = attribute("torch.nn.Module._buffers", "module.to(device)", "a module cannot move",
                       instance=nn.Identity)
backward_hooks_of = attribute("torch.Tensor._backward_hooks", "hooks of a parameter that moves",
                              "a moved parameter loses its hooks")
accumulate_hooks_of = attribute("torch.Tensor._post_accumulate_grad_hooks", "hooks of a parameter that moves",
                                "a moved parameter loses its hooks")
version_of = attribute("torch.Tensor._version", "a scalar whose value is known", "a value is believed for too long")
is_view = private("torch.Tensor._is_view", "the cache of cast weights", "casts of views are kept as well")
address_of = attribute("torch.UntypedStorage._cdata", "telling storages apart", "no memory is counted")
attribute("torch.utils._foreach_utils._foreach_supported_types", "optimizers that work on lists of tensors",
          "an optimizer step needs less than on CUDA")
attribute("torch.optim.optimizer._foreach_supported_types", "optimizers that work on lists of tensors",
          "an optimizer step needs less than on CUDA")
TorchDispatchMode = private("torch.utils._python_dispatch.TorchDispatchMode", "seeing every operator",
                            "nothing is recorded")
tree_iter = private("torch.utils._pytree.tree_iter", "tensors in nested containers", "optimizer state has no role")

# Public names that a run replaces for its time, there where it does: documented, but not as places to put another.
for _path, _purpose, _without in (
        ("torch.Generator", "generators of the card", "torch.Generator(device) fails"),
        ("torch.save", "saving tensors without values", "torch.save fails"),
        ("torch.compile", "running what was compiled as it was written", "a compiled model fails"),
        ("torch.compiler.set_stance", "running what was compiled as it was written", "a compiled model fails"),
        ("torch.clear_autocast_cache", "the end of the cache of cast weights", "casts are kept for too long"),
        ("torch.nn.functional.dropout", "dropout of the CPU, to compare with", "notebook 09 fails"),
        ("torch.amp.autocast_mode.autocast.__init__", "autocast that names CUDA", "it runs in float32"),
        ("torch.amp.grad_scaler.GradScaler.__init__", "a GradScaler that names CUDA", "it scales nothing"),
        ("torch.utils.data.DataLoader.__iter__", "a DataLoader with worker processes", "the workers fail")):
    private(_path, _purpose, _without)

# The CUDA card.
clear_cublas_workspaces = private("torch._C._cuda_clearCublasWorkspaces", "a clean CUDA card before a run",
                                  "two workspaces of an earlier run are counted", cuda=True)
record_memory_history = private("torch.cuda.memory._record_memory_history", "a CUDA card's run that is recorded",
                                "no memory snapshot from a CUDA card")
memory_snapshot = private("torch.cuda.memory._snapshot", "a CUDA card's run that is recorded",
                          "no memory snapshot from a CUDA card")


# What differs between versions of PyTorch, and what is more than one name.


def device_slot(attributes) -> str:
    """The name, among a FakeTensor's attributes, under which it keeps its device: another one before 2.12."""
    return "_fake_device" if "_fake_device" in attributes else "fake_device"


def guard_of(mode):
    """What FakeTensorMode calls on a new tensor, so that a read of its data warns or fails."""
    if getattr(mode, "_allow_unsafe_data_ptr_access", True):
        return set_warn_deprecated_on_mutable_data_ptr
    return set_throw_on_mutable_data_ptr


def foreach_type_lists() -> list[list[type]]:
    """The types of tensors that optimizers take many of at a time; one list or two, whatever this PyTorch keeps."""
    owners = importlib.import_module("torch.optim.optimizer"), importlib.import_module("torch.utils._foreach_utils")
    lists = (getattr(owner, "_foreach_supported_types", None) for owner in owners)
    return list({id(types): types for types in lists if types is not None}.values())


def fused_optimizers() -> list:
    """Operators of fused optimizers for which PyTorch has no shape rule."""
    return [getattr(torch, name) for name in ("_fused_sgd_", "_fused_adagrad_") if hasattr(torch, name)]


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


# What recorded frames of PyTorch's own code are called; a frame that is called otherwise only says less.
FRAMES_OF_BACKWARD = ("_engine_run_backward", "backward")
FRAMES_OF_STATE = ("_init_group",)
FRAMES_OF_FORWARD = ("_call_impl", "_wrapped_call_impl")
FRAMES_OF_PARAMETERS = ("_apply", "to", "cuda", "register_parameter")
FILES_OF_SIMULATION = ("_subclasses", "_ops.py", "_prims", "_decomp", "_meta_registrations", "_refs")
