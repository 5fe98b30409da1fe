"""Makes FakeTensorMode's look-ups cheaper: a third of a simulated run was spent on keys for its cache.

For every operator the mode remembers, by the metadata of the arguments, what came out. Its own key walks through
seventeen fields of every tensor. Here one tuple holds all that the result of an operator on dense tensors depends on.
What is not known to be simple gets the mode's own key, so the answers are the same.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

SIMPLE = {int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format}


class ShortCacheKeys(FakeTensorMode):
    """A FakeTensorMode with short cache keys; an ordinary one where PyTorch has no such method (it is private)."""

    if hasattr(FakeTensorMode, "_prep_args_for_hash"):
        def _prep_args_for_hash(self, result, args, state, *more):
            kind = type(args)
            if (kind is not tuple and kind is not list) or self.shape_env is not None:
                super()._prep_args_for_hash(result, args, state, *more)
                return
            result.append(kind)
            result.append(len(args))
            for arg in args:
                kind = type(arg)
                if kind in SIMPLE:
                    result.append(kind)  # 1 and 1.0 are equal and give other dtypes
                    result.append(arg)
                elif kind is FakeTensor and is_simple(arg, self):
                    result.append((arg.dtype, arg.shape, arg.stride(), arg.fake_device, arg.storage_offset(),
                                   arg.untyped_storage().nbytes(), arg.requires_grad, arg.is_conj(), arg.is_neg(),
                                   arg.is_inference()))
                elif kind is tuple or kind is list:
                    self._prep_args_for_hash(result, arg, state, *more)
                else:
                    super()._prep_args_for_hash(result, (arg,), state, *more)


def is_simple(tensor: FakeTensor, mode: FakeTensorMode) -> bool:
    """Whether shape, strides, dtype and place say all about a tensor: dense, of this mode, without a known value."""
    return tensor.layout is torch.strided and tensor.fake_mode is mode and tensor.constant is None
