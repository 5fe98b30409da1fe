"""`module.to(device)`, `.half()`, `.cpu()` and initialisers within a simulation, with the effects they have on CUDA."""

import contextlib
import weakref

import torch
from torch import nn

from helpers.torch_private import (
    FakeTensor,
    apply_to,
    buffers_of,
    hooks_of,
    module_apply,
    parameters_of,
    set_hooks,
    swap_tensor_impl,
    truncated_normal,
)


def _take_over(tensor, new) -> None:
    """Give `tensor` the device, dtype and storage of `new`; it stays the same object, as with `.data = ` on CUDA.

    PyTorch does this by `torch.utils.swap_tensors` for fake tensors, but refuses where a weak reference points at the
    tensor, as FakeTensorMode's own do. They stay right here: the tensor keeps its identity. So do its hooks.
    """
    hooks = hooks_of(tensor)
    tensor.__dict__, new.__dict__ = new.__dict__, tensor.__dict__
    swap_tensor_impl(tensor, new)
    set_hooks(tensor, hooks)


@contextlib.contextmanager
def generators_on_the_cpu():
    """Within it `torch.Generator(device="sim")` is a CPU generator: its numbers go nowhere."""
    original = torch.Generator

    class AnyGenerator(type):
        def __call__(cls, device="cpu"):
            return original(device="cpu" if torch.device(device).type == "sim" else device)

        def __instancecheck__(cls, x):
            return isinstance(x, original)

    torch.Generator = AnyGenerator("Generator", (), {})
    try:
        yield
    finally:
        torch.Generator = original


@contextlib.contextmanager
def move_fake_parameters():
    """Within it `nn.Module._apply` moves fake parameters in place, and real ones for the time of the simulation.

    A module with real weights, built outside, is lent: the simulation gives it fake parameters, and its own are put
    back at the end, untouched.
    """
    lent = []  # (module, "_parameters" or "_buffers", name, the real tensor)
    replaced: dict[int, tuple] = {}  # real parameter and its fake: tied weights stay tied

    def lend(module, kind, name, real, fake):
        lent.append((weakref.ref(module), kind, name, real))
        getattr(module, kind)[name] = fake

    def move(module, fn, recurse=True):
        if recurse:
            for child in module.children():
                apply_to(child, fn)
        for name, parameter in parameters_of(module).items():
            if parameter is None:
                continue
            with torch.no_grad():
                if isinstance(parameter, FakeTensor):
                    gradient, parameter.grad = parameter.grad, None
                    new = fn(parameter)
                    if new is not parameter:
                        _take_over(parameter, nn.Parameter(new, parameter.requires_grad))
                    if gradient is not None:
                        parameter.grad = fn(gradient)
                elif id(parameter) in replaced:
                    lend(module, "_parameters", name, parameter, replaced[id(parameter)][1])
                else:
                    new = fn(parameter)
                    if isinstance(new, FakeTensor):
                        new = nn.Parameter(new, parameter.requires_grad)
                        replaced[id(parameter)] = parameter, new
                        lend(module, "_parameters", name, parameter, new)
                    elif new is not parameter:
                        parameter.data = new
        for name, buffer in buffers_of(module).items():
            if buffer is not None:
                new = fn(buffer)
                if isinstance(new, FakeTensor) and not isinstance(buffer, FakeTensor):
                    lend(module, "_buffers", name, buffer, new)
                else:
                    buffers_of(module)[name] = new
        return module

    def initialise(tensor, *args, **kwargs):
        """PyTorch 2.14's truncated normal looks at what it drew: on fake tensors there is nothing to look at."""
        return tensor if isinstance(tensor, FakeTensor) else draw(tensor, *args, **kwargs)

    try:
        with module_apply(move), truncated_normal(initialise) as draw:
            yield
    finally:
        for module, kind, name, real in reversed(lent):
            if module() is not None:
                getattr(module(), kind)[name] = real
