"""What a simulation knows of the values of tensors, and the one clear sentence where training code asks for more.

Tensors on the simulated device have no data. Tensors on the CPU that were made outside (a DataLoader's batches, numpy
arrays) have, and keep it: an operator that touches nothing else runs for real. Of a GradScaler everything is known.
"""

import operator
import sys
import warnings

import torch
from torch.overrides import TorchFunctionMode

from helpers.simulation.device.backend import DEVICE
from helpers.simulation.torch_functions.cuda_names import (
    device_type,
    make_device,
    refuse_cuda_device,
    refuse_tensor_cuda,
)
from helpers.simulation.values.unknown import DataDependentError, Unknown
from helpers.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unscale,
    unset_fake_temporarily,
    update_scale,
    version_of,
)


def _set_known(tensor, value) -> None:
    """Remember a tensor's one number until something writes into it."""
    if isinstance(tensor, FakeTensor) and tensor.numel() == 1 and isinstance(value, (int, float)):
        tensor.known_value = value, version_of(tensor)


def _known(tensor):
    """The value of a tensor of one element: a number, or Unknown."""
    value, version = getattr(tensor, "known_value", (None, None))
    if value is not None and version == version_of(tensor):
        return value
    if tensor.constant is None:
        return Unknown()
    with unset_fake_temporarily():
        return tensor.constant.item()


def _called_from(package: str, depth: int) -> bool:
    """Whether the function `depth` frames up belongs to a package."""
    return sys._getframe(depth).f_globals.get("__name__", "").startswith(package)


def _deepcopy(func, args, kwargs):
    if isinstance(args[0], FakeTensor):  # a copy of the mode, too, would free in its turn what the mode refers to
        args[1][id(args[0].fake_mode)] = args[0].fake_mode
    with warnings.catch_warnings():  # about the address of data that is not there
        warnings.simplefilter("ignore", UserWarning)
        return func(*args, **kwargs)


def _item(func, args, kwargs):
    if args[0].numel() != 1:
        return func(*args, **kwargs)
    value = _known(args[0])
    # Adafactor and others scale an update by what they read: any number does, and nothing is allocated by it.
    return 0.5 if isinstance(value, Unknown) and _called_from("torch.optim", 3) else value


def _as(convert):
    return lambda func, args, kwargs: convert(_known(args[0]))


def _format(func, args, kwargs):
    tensor, spec = args
    return format(_known(tensor), spec) if tensor.dim() == 0 else repr(tensor)


def _repr(func, args, kwargs):
    tensor = args[0]
    value = str(_known(tensor)) if tensor.dim() == 0 else "..."
    shape = "" if tensor.dim() == 0 else f", size={tuple(tensor.shape)}"
    name = "Parameter containing:\n" if isinstance(tensor, torch.nn.Parameter) else ""
    return f"{name}tensor({value}{shape}, device='{tensor.device}', dtype={tensor.dtype})"


def _values_of(func, args, kwargs):
    if args[0].constant is not None:
        with unset_fake_temporarily():
            return func(args[0].constant, *args[1:], **kwargs)
    raise DataDependentError(f"reads the values of a tensor of shape {tuple(args[0].shape)}")


def _found_no_inf(func, args, kwargs):
    out = func(*args, **kwargs)
    _set_known(args[1], 0.0)
    return out


def _update_scale(func, args, kwargs):
    """What aten/src/ATen/native/cuda/AmpKernels.cu does when no overflow was found."""
    scale, tracker, _, growth, _, interval = args
    before, steps = _known(scale), _known(tracker)
    out = func(*args, **kwargs)
    if not isinstance(before, Unknown) and not isinstance(steps, Unknown):
        grows = steps + 1 == interval
        _set_known(scale, before * growth if grows else before)
        _set_known(tracker, 0 if grows else steps + 1)
    return out


def _full(func, args, kwargs):
    out = func(*args, **kwargs)
    _set_known(out, kwargs["fill_value"] if "fill_value" in kwargs else args[1])
    return out


def _fill(func, args, kwargs):
    out = func(*args, **kwargs)
    if len(args) == 2:
        _set_known(args[0], args[1])
    return out


def _scalar(value):
    """`torch.zeros(())` on the CPU: an optimizer's counter, which keeps its value as `torch.tensor(0.0)` does."""
    def make(func, args, kwargs):
        device = kwargs.get("device")
        if args in (((),), ([],)) and (device is None or torch.device(device).type == "cpu"):
            return torch.tensor(value, **kwargs)
        return func(*args, **kwargs)
    return make


def _nothing(func, args, kwargs):
    """A fused optimizer writes into what it is given; PyTorch has no shape rule for these, and none is needed."""


def _recurrent(func, args, kwargs):
    raise NotImplementedError("A simulation cannot run nn.LSTM, nn.GRU or nn.RNN: on CUDA they are one cuDNN kernel, "
                              "which keeps memory of its own for backward.")


T = torch.Tensor
OF_FAKE_TENSORS = {
    T.item: _item, T.__bool__: _as(bool), T.__float__: _as(float), T.__int__: _as(int),
    T.__index__: _as(operator.index),
    T.__format__: _format, T.__repr__: _repr, T.numpy: _values_of, T.__array__: _values_of,
    unscale: _found_no_inf, update_scale: _update_scale,
    T.fill_: _fill, T.__deepcopy__: _deepcopy,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
    **{getattr(torch, name): _nothing for name in ("_fused_sgd_", "_fused_adagrad_") if hasattr(torch, name)},
}
OF_ANYTHING = {
    torch.full: _full, torch.zeros: _scalar(0.0), torch.ones: _scalar(1.0), torch.device: make_device,
    T.cuda: refuse_tensor_cuda, T.pin_memory: lambda func, args, kwargs: args[0],  # host memory is not modelled
}


def _have_data(args, kwargs) -> bool | None:
    """Whether every tensor among the arguments has data; None if there is no tensor and no word of the card."""
    answer = None
    for x in (*args, *kwargs.values()) if kwargs else args:
        kind = type(x)
        if kind is list or kind is tuple:
            for value in x:
                if isinstance(value, FakeTensor):
                    return False
                if isinstance(value, torch.Tensor):
                    answer = True
        elif isinstance(x, torch.Tensor):
            if isinstance(x, FakeTensor):
                return False
            answer = True
        elif (kind is torch.device or kind is str) and device_type(x) == DEVICE:
            return False
    return answer


class Values(TorchFunctionMode):
    """Answers questions about values within a simulation, and says so where there is no answer."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = kwargs.get("device") if kwargs else None
        if kwargs.get("pin_memory"):
            kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if func is T.to and len(args) > 1:
            device = args[1]
        if device is not None:
            refuse_cuda_device(device)
        handler = OF_ANYTHING.get(func)
        if handler is not None:
            return handler(func, args, kwargs)
        have_data = _have_data(args, kwargs)
        if have_data or (have_data is None and _called_from("torch.utils.data", 2)):  # a DataLoader draws its order
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        handler = OF_FAKE_TENSORS.get(func)
        try:
            return func(*args, **kwargs) if handler is None else handler(func, args, kwargs)
        except DataDependentOutputException as error:
            raise DataDependentError(f"reads a value ({error.func})") from None
        except DynamicOutputShapeException as error:
            raise DataDependentError(f"makes a tensor whose shape depends on values ({error.func})") from None
        except NotImplementedError as error:
            if handler is _recurrent:
                raise  # it says so itself
            name = getattr(func, "__name__", func)
            raise NotImplementedError(f"A simulation cannot run {name}: PyTorch cannot tell what it gives without "
                                      f"running it. ({str(error).partition('. ')[0]}.)") from None
