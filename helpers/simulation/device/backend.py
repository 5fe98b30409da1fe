"""A PyTorch device `sim` that dispatches as CUDA does and computes nothing: its registration, once a process.

PyTorch lets a backend be registered in Python, under PrivateUse1. FakeTensors on such a device run forward, backward,
optimizers and GradScaler in any build of PyTorch, keep host and device apart, and leave autocast and attention to us.
"""

import contextlib

import torch

from helpers.simulation.device import attention, autocast, kernels
from helpers.simulation.device.device_guard import DeviceGuard
from helpers.torch_private import PrivateUse1Hooks, destroy_library, setup_backend

DEVICE = "sim"


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


class Hooks(PrivateUse1Hooks):
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
        module = DeviceModule()
        setup_backend(
            DEVICE, backend_module=module, hook=Hooks(), device_guard=DeviceGuard())
        module.kept_by = None
    if module.kept_by is not register:
        for library in getattr(module, "libraries", ()):
            destroy_library(library)()
        others = torch.library.Library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        module.libraries = [others, autocast.register(), attention.register(), kernels.register()]
        module.kept_by = register
    return module
