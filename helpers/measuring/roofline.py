"""An estimate of how long a card computes: each operator takes as long as its arithmetic or its memory traffic.

The roofline model (Williams, Waterman and Patterson, 2009): seconds = max(operations / peak operations a second, bytes
moved / bandwidth), summed over operators. It is a lower bound that no real card reaches: launches, caches, and shapes
that fill a chip badly are not in it. Use it to compare, never as a measurement.
"""

import functools

import torch

from helpers.torch_private import schema_of

HALF = (torch.float16, torch.bfloat16)


@functools.cache
def moves_nothing(func) -> bool:
    """Whether the operator only makes a view, or memory that it does not fill."""
    views = any(result.alias_info is not None and not result.alias_info.is_write for result in schema_of(func).returns)
    asks = func.namespace == "prim"  # where a tensor lives, and the like
    return views or asks or func.overloadpacket.__name__ in ("empty", "empty_like", "empty_strided", "new_empty")


def tensors_in(*values) -> list[torch.Tensor]:
    """The tensors in an operator's arguments or results (PyTorch's own `tree_iter` takes several times as long)."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(*value)
        elif isinstance(value, dict):
            found += tensors_in(*value.values())
    return found


class Roofline:
    """Sums the seconds of operators on the card `spec` (a `CardSpec`); only tensors on `device_type` count."""

    def __init__(self, spec, device_type: str):
        self.spec, self.device_type, self.seconds = spec, device_type, 0.0

    def add(self, func, args, kwargs, out, flops: int) -> None:
        if moves_nothing(func):
            return
        tensors = [tensor for tensor in tensors_in(*args, kwargs, out) if tensor.device.type == self.device_type]
        # What is expanded is read once: its storage is smaller than its shape.
        moved = sum(min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()) for tensor in tensors)
        seconds = moved / self.spec.bandwidth
        if flops:
            half = any(tensor.dtype in HALF for tensor in tensors)
            seconds = max(seconds, flops / (self.spec.flops_half if half else self.spec.flops_fp32))
        self.seconds += seconds
