"""A PyTorch device `sim` that dispatches as CUDA does and computes nothing."""

import contextlib

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from helpers.simulation.backward_errors import DeviceGuard, raise_backward_errors

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


class DeviceModule(_DummyBackendModule):
    """What torch.autocast and torch.utils.checkpoint ask of a device module."""

    def get_amp_supported_dtype(self):
        return list(HALF)

    def get_rng_state(self, device=None):
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        pass

    @contextlib.contextmanager
    def device(self, index):
        yield


class Values(TorchFunctionMode):
    """Answers for reads of a value: no overflow was found, a step was taken, everything else is unknown (nan)."""

    def __init__(self):
        super().__init__()
        self.found_inf = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch._amp_foreach_non_finite_check_and_unscale_:
            self.found_inf.add(args[1].untyped_storage()._cdata)
        elif func is torch.Tensor.item:
            if args[0].device.type == "cpu":
                return 1.0
            return 0.0 if args[0].untyped_storage()._cdata in self.found_inf else float("nan")
        elif func is torch.Tensor.cuda:
            raise RuntimeError("train says .cuda(); write .to(device), and the same code runs on both cards.")
        return func(*args, **(kwargs or {}))


def _autocast_kernels() -> list:
    """CUDA's autocast policy for the operators of the reference model, on the key that only `sim` tensors reach."""
    here = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(x, dtype):
        if not (isinstance(x, torch.Tensor) and x.device.type == "sim" and x.is_floating_point()) or x.dtype == dtype:
            return x
        if dtype in HALF and x.dtype == torch.float32 and x.requires_grad and x.is_leaf and not x._is_view():
            if id(x) not in CAST_WEIGHTS:
                CAST_WEIGHTS[id(x)] = (x, x.to(dtype))
            return CAST_WEIGHTS[id(x)][1]
        return x.to(dtype)

    def policy(op, dtype=None):
        def kernel(*args, **kwargs):
            with torch._C._ExcludeDispatchKeyGuard(here):
                to = dtype or torch.get_autocast_dtype("sim")
                args = [cast(x, to) for x in reversed(args)][::-1]  # CUDA casts the last argument first
                return op(*args, **{name: cast(value, to) for name, value in kwargs.items()})
        return kernel

    def softmax(op):
        def kernel(x, dim, dtype=None):
            with torch._C._ExcludeDispatchKeyGuard(here):
                if x.dtype == torch.float16:
                    return op(x, dim, True)  # converts inside the kernel: no copy of the input
                return op(cast(x, torch.float32), dim, False)
        return kernel

    fallthrough = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    fallthrough.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL")
    for name in ["linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention"]:
        library.impl(name, policy(getattr(aten, name).default), "AutocastPrivateUse1")
    for name in ["layer_norm", "native_layer_norm", "nll_loss", "nll_loss_nd"]:
        library.impl(name, policy(getattr(aten, name).default, torch.float32), "AutocastPrivateUse1")
    library.impl("softmax.int", softmax(aten._softmax.default), "AutocastPrivateUse1")
    library.impl("log_softmax.int", softmax(aten._log_softmax.default), "AutocastPrivateUse1")
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    return [fallthrough, library]


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """Flash for half precision without a mask, memory-efficient otherwise (compute capability 8.x)."""
    if q.dtype in HALF and attn_mask is None:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    grad = q.requires_grad or k.requires_grad or v.requires_grad
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, grad, dropout_p, is_causal, scale=scale)[0]


CAST_WEIGHTS: dict = {}
KEPT: list = []  # libraries live as long as the process: they only ever see `sim` tensors


def register() -> None:
    if not KEPT:
        _setup_privateuseone_for_python_backend("sim", backend_module=DeviceModule(), device_guard=DeviceGuard())
        KEPT.extend(_autocast_kernels())


@contextlib.contextmanager
def simulation(capability=(8, 6), leave_out=frozenset()):
    """Run training code on `torch.device("sim")`; everything it changes is put back afterwards."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    register()
    clear = torch.clear_autocast_cache

    def clear_autocast_cache():
        CAST_WEIGHTS.clear()
        clear()

    types = {id(owner._foreach_supported_types): owner._foreach_supported_types for owner in (optimizer, _foreach_utils)
             if hasattr(owner, "_foreach_supported_types")}
    apply = torch.nn.Module._apply

    def apply_by_replacing(module, fn, recurse=True):
        for child in module.children():
            apply_by_replacing(child, fn)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    module._parameters[name] = torch.nn.Parameter(fn(parameter), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    with contextlib.ExitStack() as stack:
        for known in types.values():
            known.append(FakeTensor)
            stack.callback(known.remove, FakeTensor)
        torch.clear_autocast_cache, torch.nn.Module._apply = clear_autocast_cache, apply_by_replacing
        stack.callback(setattr, torch, "clear_autocast_cache", clear)
        stack.callback(setattr, torch.nn.Module, "_apply", apply)
        stack.callback(CAST_WEIGHTS.clear)
        lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Values())
        stack.enter_context(raise_backward_errors())
        yield mode
