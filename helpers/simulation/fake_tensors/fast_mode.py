"""Makes FakeTensors quicker: most of a simulated run was PyTorch's bookkeeping around them.

For every operator, FakeTensorMode remembers what came out for which kinds of arguments, and makes the same again. Here
the same happens with a shorter key and in fewer steps. What may be remembered the mode itself decides, and what is not
known to be simple goes through the mode as ever, so the answers are the same.
"""

import torch

from helpers.torch_private import (
    DisableTorchDispatch,
    FakeTensor,
    FakeTensorMode,
    make_subclass,
    set_throw_on_mutable_data_ptr,
    set_warn_deprecated_on_mutable_data_ptr,
    unsafe_view,
)

PLAIN = {int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format}
SAME_WITHOUT_DATA = {unsafe_view.default: torch.ops.aten.view.default}  # the mode remembers only views


class QuickFakeTensorMode(FakeTensorMode):
    """A FakeTensorMode that answers from its own short memory; an ordinary one where PyTorch's private parts differ."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.entries = {}  # short key -> the mode's own cache entry: what came out
        self.entry = None  # of the operator that the mode has just answered
        unsafe = getattr(self, "_allow_unsafe_data_ptr_access", True)
        self.guard = (set_warn_deprecated_on_mutable_data_ptr if unsafe else
                      set_throw_on_mutable_data_ptr)
        model = FakeTensor(self, torch.empty(0, device="meta"), torch.device("cpu"))
        self.attributes = {name: value for name, value in vars(model).items() if name != "fake_mode"}
        self.place = "_fake_device" if "_fake_device" in self.attributes else "fake_device"  # before 2.12

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a wrapper around every call, for torch.compile; a simulation compiles nothing

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        func = SAME_WITHOUT_DATA.get(func, func)
        key = self.short_key(func, args, kwargs)
        entry = self.entries.get(key)
        if entry is not None:
            return super()._output_from_cache_entry(None, entry, None, func, args)
        self.entry = None
        out = super().__torch_dispatch__(func, types, args, kwargs or {})
        entry, self.entry = self.entry, None
        if key is not None and entry is not None:
            self.entries[key] = entry
        return out

    def _make_cache_entry(self, *args):
        self.entry = super()._make_cache_entry(*args)
        return self.entry

    def _output_from_cache_entry(self, state, entry, *args):
        out = super()._output_from_cache_entry(state, entry, *args)
        self.entry = entry
        return out

    def _prep_args_for_hash(self, result, args, *more):
        """The mode's own key, where it is needed: seventeen fields of every tensor, or the short one."""
        found = [type(args), len(args)]
        if type(args) in (tuple, list) and self._add_to_key(found, args):
            result += found
        else:
            super()._prep_args_for_hash(result, args, *more)

    def short_key(self, func, args, kwargs) -> tuple | None:
        """All that the result of an operator depends on; None where that is not simple."""
        found = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        simple = self._add_to_key(found, args)
        for name, value in kwargs.items() if kwargs else ():
            found.append(name)
            simple = simple and self._add_to_key(found, (value,))
        return tuple(found) if simple else None

    def _add_to_key(self, found: list, args) -> bool:
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor:  # dense, of this mode, without a known value
                if arg.layout is not torch.strided or arg.fake_mode is not self or arg.constant is not None:
                    return False
                found.append((arg.dtype, arg.shape, arg.stride(), arg.fake_device, arg.storage_offset(),
                              arg.untyped_storage().nbytes(), arg.requires_grad, arg.is_conj(), arg.is_neg(),
                              arg.is_inference()))
            elif kind in PLAIN:
                found.append(kind)  # 1 and 1.0 are equal and give other dtypes
                found.append(arg)
            elif kind is list or kind is tuple:
                found.append(kind)
                found.append(len(arg))
                if not self._add_to_key(found, arg):
                    return False
            else:
                return False
        return True

    def _get_output_tensor_from_cache_entry(self, state, entry, key, func, args):
        """PyTorch's method of this name, for the usual case."""
        like = entry.metadata
        if (entry.inplace_idx is not None or like is None or like.layout is not torch.strided or like.is_conj
                or like.is_neg or self.shape_env is not None):
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        with DisableTorchDispatch():  # all on the meta device
            empty = torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device="meta",
                                        requires_grad=like.requires_grad)
            if entry.view_idx is not None:
                empty.set_(args[entry.view_idx].untyped_storage(), like.storage_offset, like.shape, like.stride)
        return self.make_fake(empty, like.device)

    def make_fake(self, empty: torch.Tensor, device: torch.device) -> FakeTensor:
        """`FakeTensor(self, empty, device)`."""
        fake = make_subclass(FakeTensor, empty, empty.requires_grad, dispatch_device=True,
                                           device_for_backend_keys=device)
        self.guard(fake)
        vars(fake).update(self.attributes, fake_mode=self)
        vars(fake)[self.place] = device
        return fake
