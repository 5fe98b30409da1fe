"""Code that names CUDA gets, within a simulation, one sentence that says what to write instead."""

import contextlib
import sys

import torch

# What to use instead of functions of torch.cuda.
INSTEAD = {
    "empty_cache": "card.empty_cache()",
    "memory_allocated": "run.peak_allocated", "max_memory_allocated": "run.peak_allocated",
    "memory_reserved": "run.peak_reserved", "max_memory_reserved": "run.peak_reserved",
    "reset_peak_memory_stats": "nothing: every card.run starts anew", "mem_get_info": "card.capacity",
    "memory_stats": "run.timeline", "memory_summary": "print(run)", "memory_snapshot": "run.timeline",
    "set_per_process_memory_fraction": "open_card(..., capacity=bytes)",
    "synchronize": "torch.accelerator.synchronize()",
    "get_device_properties": "card.name and card.capacity", "set_device": "nothing: device says which card",
}


def not_cuda(said: str, write: str) -> RuntimeError:
    return RuntimeError(
        f"train says {said}; write {write}, and the same code runs on a real card and on a simulated one.")


def device_type(x) -> str | None:
    """The type of device that an argument names, if it names one."""
    if isinstance(x, torch.device):
        return x.type
    return x.partition(":")[0] if isinstance(x, str) else None


def is_installed(filename: str) -> bool:
    """Whether a file belongs to an installed library."""
    return "site-packages" in filename or "dist-packages" in filename


def refuse_cuda_device(device) -> None:
    """RuntimeError if an argument names a CUDA device; on fake tensors, PyTorch would end the process in backward."""
    if device_type(device) == "cuda":
        raise not_cuda(f'"{device}"', "device, the argument of train")


def refuse_tensor_cuda(func, args, kwargs):
    raise not_cuda(".cuda()", ".to(device)")


def make_device(func, args, kwargs) -> torch.device:
    """A device; CUDA's only for a library that names it while it is imported, say. Using it is refused all the same."""
    device = func(*args, **kwargs)
    if device.type == "cuda" and not is_installed(sys._getframe(2).f_code.co_filename):
        raise not_cuda(f'torch.device("{device}")', "device, the argument of train")
    return device


def _refusing_init(init, said: str, write: str):
    """An `__init__` whose first argument names a device; without one it is CUDA's."""
    def __init__(self, device="cuda", *args, **kwargs):
        device = kwargs.pop("device_type", kwargs.pop("device", device))
        if device_type(device) == "cuda":
            raise not_cuda(said, write)
        init(self, device, *args, **kwargs)
    return __init__


def _refusing(name: str, module):
    def function(*args, **kwargs):
        raise RuntimeError(f"train calls {module.__name__}.{name}(), which knows nothing of a simulated card; write "
                           f"{INSTEAD[name]}.")
    return function


def _without_workers(iterate):
    """A DataLoader's `__iter__`; worker processes would inherit the simulation, and fail in it."""
    def __iter__(self):
        if self.num_workers:
            raise RuntimeError(f"train uses a DataLoader with num_workers={self.num_workers}; in a simulation write "
                               "num_workers=0, which needs the same memory on the card.")
        return iterate(self)
    return __iter__


@contextlib.contextmanager
def refuse_cuda():
    """Within it `torch.autocast("cuda")`, `GradScaler("cuda")` and calls about the GPU's memory raise RuntimeError.

    Where there is no GPU, PyTorch itself would warn, carry on in float32 and so measure something else. A DataLoader
    with worker processes raises as well.
    """
    autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    loader = torch.utils.data.DataLoader
    patches = [
        (loader, "__iter__", _without_workers(loader.__iter__)),
        (autocast, "__init__", _refusing_init(
            autocast.__init__, 'torch.autocast("cuda")', "torch.autocast(device.type, dtype=...)")),
        (scaler, "__init__", _refusing_init(
            scaler.__init__, "GradScaler for CUDA", "torch.amp.GradScaler(device.type)")),
        *((torch.cuda, name, _refusing(name, torch.cuda)) for name in INSTEAD if hasattr(torch.cuda, name)),
        *((torch.accelerator, name, _refusing(name, torch.accelerator)) for name in INSTEAD
          if hasattr(torch.accelerator, name) and ("memory" in name or name == "empty_cache")),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield
