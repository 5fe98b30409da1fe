"""Runs PyTorch training code on the simulated device: all that changes PyTorch for the time of a run."""

import contextlib
import threading

from helpers.simulation.device import attention, autocast, kernels
from helpers.simulation.device.backend import register
from helpers.simulation.device.device_guard import raise_backward_errors
from helpers.simulation.fake_tensors.fast_mode import QuickFakeTensorMode
from helpers.simulation.fake_tensors.module_moves import generators_on_the_cpu, move_fake_parameters
from helpers.simulation.torch_functions.cuda_names import refuse_cuda
from helpers.simulation.torch_functions.save_and_compile import pass_over
from helpers.simulation.values.reading import Values
from helpers.torch_private import FakeTensor, foreach_utils, only_lift_cpu_tensors, set_only_lift_cpu_tensors

PARTS = {"autocast lists", "attention kernels", "foreach", "dropout masks"}
_one_at_a_time = threading.RLock()


class DatalessDeviceMode(QuickFakeTensorMode):
    """A FakeTensorMode for a device that cannot hold data at all: constants are not copied to it."""

    avoid_device_init = True


@contextlib.contextmanager
def foreach_by_default():
    """As on CUDA: optimizers and clip_grad_norm_ work on lists of tensors, also of fake ones."""
    from torch.optim import optimizer

    lists = {id(types): types for owner in (optimizer, foreach_utils)
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
    before = only_lift_cpu_tensors()
    set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        set_only_lift_cpu_tensors(before)


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
            stack.enter_context(kernels.dropout_of_the_cpu())
        stack.enter_context(raise_backward_errors())
        yield mode
