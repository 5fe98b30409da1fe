"""Operators that PyTorch puts together differently on CUDA than on other devices.

Each is registered on the AutogradPrivateUse1 key, which only tensors of the simulated device reach.
"""

import contextlib

import torch

from helpers.torch_private import log_softmax, softmax

aten = torch.ops.aten


# Composed of other operators everywhere but on CPU or CUDA, which have kernels. To have a kernel, too, is enough to
# keep PyTorch from taking them apart; FakeTensorMode knows the shapes of their results.
KERNELS_ON_CUDA = ("silu_backward", "mish_backward", "_fused_rms_norm")


def _softmax(op):
    """float16 in, float32 out: CUDA's kernel converts, without a copy (aten/src/ATen/native/SoftMax.cpp)."""
    def run(x, dim, dtype=None):
        if x.dtype is torch.float16 and dtype is torch.float32:
            return op(x, dim, True)
        return op(x if dtype is None else x.to(dtype), dim, False)
    return run


@contextlib.contextmanager
def dropout_of_the_cpu():
    """As aten/src/ATen/native/Dropout.cpp does it for the CPU: the mask is noise of the input's own dtype."""
    fused = torch.nn.functional.dropout

    def dropout(input, p=0.5, training=True, inplace=False):
        if not training or not 0 < p < 1 or input.device.type != "sim":
            return fused(input, p, training, inplace)
        return input * torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)

    torch.nn.functional.dropout = dropout  # not a function mode: none is active when checkpointing recomputes
    try:
        yield
    finally:
        torch.nn.functional.dropout = fused


def _never_called(*args, **kwargs):
    raise NotImplementedError("kernels of the simulated device compute nothing")


def register() -> torch.library.Library:
    """Register them; they live as long as the library that this returns."""
    library = torch.library.Library("aten", "IMPL")
    for name in KERNELS_ON_CUDA:
        if hasattr(aten, name):
            library.impl(name, _never_called, "PrivateUse1")
    library.impl("softmax.int", _softmax(softmax.default), "AutogradPrivateUse1")
    library.impl("log_softmax.int", _softmax(log_softmax.default), "AutogradPrivateUse1")
    return library
