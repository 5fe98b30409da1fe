"""A PyTorch device `sim` that dispatches as CUDA does and computes nothing.

PyTorch lets a backend be registered in Python, under PrivateUse1. FakeTensors on such a device run forward, backward,
optimizers and GradScaler in any build of PyTorch, keep host and device apart, and leave autocast and attention to us.
"""

import contextlib
import threading

import torch
from torch._subclasses.fake_tensor import FakeTensor

from helpers.simulation import attention, autocast, composites
from helpers.simulation.backward_errors import DeviceGuard, raise_backward_errors
from helpers.simulation.moving import generators_on_the_cpu, move_fake_parameters
from helpers.simulation.passed_over import pass_over
from helpers.simulation.quick_fakes import QuickFakeTensorMode
from helpers.simulation.refusals import refuse_cuda
from helpers.simulation.values import DEVICE, Values

PARTS = {"autocast lists", "attention kernels", "foreach", "dropout masks"}
_one_at_a_time = threading.RLock()


class DeviceModule:
    """`torch.sim`: what PyTorch asks of a device's module. The device is there only within `simulation`."""

    in_use = False

    def is_available(self) -> bool:
        return self.in_use

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    @contextlib.contextmanager
    def device(self, index):
        yield

    def set_device(self, device) -> None:
        pass

    def synchronize(self, device=None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    manual_seed_all = manual_seed

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state, device=None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """What PyTorch's C++ side asks of a device."""

    def is_available(self) -> bool:
        return getattr(torch, DEVICE).in_use

    def has_primary_context(self, index) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register() -> DeviceModule:
    """Register device and kernels, once a process; they only ever see tensors of this device.

    When a notebook reloads this module, the kernels of the new one replace those of the old one.
    """
    module = getattr(torch, DEVICE, None)
    if module is None:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        module = DeviceModule()
        _setup_privateuseone_for_python_backend(
            DEVICE, backend_module=module, hook=Hooks(), device_guard=DeviceGuard())
        module.kept_by = None
    if module.kept_by is not register:
        for library in getattr(module, "libraries", ()):
            library._destroy()
        others = torch.library.Library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        module.libraries = [others, autocast.register(), attention.register(), composites.register()]
        module.kept_by = register
    return module


class DatalessDeviceMode(QuickFakeTensorMode):
    """A FakeTensorMode for a device that cannot hold data at all: constants are not copied to it."""

    avoid_device_init = True


@contextlib.contextmanager
def foreach_by_default():
    """As on CUDA: optimizers and clip_grad_norm_ work on lists of tensors, also of fake ones."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    lists = {id(types): types for owner in (optimizer, _foreach_utils)
             if (types := getattr(owner, "_foreach_supported_types", None)) is not None}
    for types in lists.values():
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists.values():
            types.remove(FakeTensor)


@contextlib.contextmanager
def lift_only_cpu_tensors():
    """`torch.tensor(data, device="sim")` makes the tensor on the CPU and moves it, as it does for CUDA."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


@contextlib.contextmanager
def simulation(capability: tuple[int, int] = (8, 6), leave_out=frozenset()):
    """Run ordinary PyTorch training code on `torch.device("sim")`; gives the FakeTensorMode.

    capability: CUDA compute capability of the card, which decides on attention kernels. leave_out, to see what each is
    worth: "autocast lists" (cast what the CPU would), "attention kernels" (no fused ones), "foreach" (optimizers loop
    over parameters), "dropout masks" (the CPU's, 4 bytes an element where CUDA's have 1). Everything that it changes in
    PyTorch is put back when it ends. One thread at a time.
    """
    leave_out = frozenset(leave_out)
    if leave_out - PARTS:
        raise ValueError(f"Unknown part to leave out: {', '.join(sorted(leave_out - PARTS))}. "
                         f"Known parts: {', '.join(sorted(PARTS))}.")
    with _one_at_a_time, contextlib.ExitStack() as stack:
        module = register()
        stack.callback(setattr, module, "in_use", module.in_use)
        module.in_use = True
        stack.enter_context(autocast.autocast_rules("autocast lists" in leave_out))
        stack.enter_context(attention.attention_kernels(capability, "attention kernels" in leave_out))
        if "foreach" not in leave_out:
            stack.enter_context(foreach_by_default())
        stack.enter_context(lift_only_cpu_tensors())
        stack.enter_context(move_fake_parameters())
        stack.enter_context(generators_on_the_cpu())
        stack.enter_context(refuse_cuda())
        stack.enter_context(pass_over())
        mode = stack.enter_context(DatalessDeviceMode(allow_non_fake_inputs=True))
        stack.enter_context(Values())
        if "dropout masks" in leave_out:
            stack.enter_context(composites.dropout_of_the_cpu())
        stack.enter_context(raise_backward_errors())
        yield mode
