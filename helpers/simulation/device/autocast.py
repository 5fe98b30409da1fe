"""CUDA's autocast on the simulated device: which operator casts its inputs, to what, and the cache of cast weights.

The lists and the rules are those of PyTorch's `AT_FORALL_...` macros and `WrapFunction_` (ATen/autocast_mode.h and
autocast_mode.cpp). The kernels are registered on the AutocastPrivateUse1 key, which only tensors of the simulated
device reach.
"""

import contextlib
import weakref

import torch

from helpers.torch_private import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard, FakeTensor, is_view, schema_of

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
AUTOCAST = DispatchKeySet(DispatchKey.AutocastPrivateUse1)


def words(text: str) -> list[str]:
    return text.split()


LOWER_PRECISION = words("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm
    bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
""")
FLOAT32 = words("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
""")
FLOAT32_OUTPUT = words("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
PROMOTE = words("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")

# What PyTorch's CPU list does with the operators above (autocast_mode.cpp, AutocastCPU); the rest stays as it is.
CPU_LOWER_PRECISION = words("""
    _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input prelu addmm matmul mm linalg_vecdot linear addbmm baddbmm bmm scaled_dot_product_attention
""")
CPU_FLOAT32 = words("""
    prod prod.dim_int cdist renorm grid_sampler poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
""")

_cast_weights: dict[int, tuple[weakref.ref, torch.Tensor]] = {}  # by id of the float32 weight
_cpu_lists = False


def is_eligible(x) -> bool:
    # `fake_device` because under a dispatch mode `x.device` would be an operator call of its own.
    return (isinstance(x, FakeTensor) and x.fake_device.type == "sim" and x.is_floating_point()
            and x.dtype is not torch.float64)


def cast(x, dtype: torch.dtype):
    """`x` (a tensor, a list of tensors, or anything else) in `dtype`.

    The low-precision copy of a float32 weight (a leaf that requires grad and is no view) is kept and used again until
    the outermost autocast ends.
    """
    if isinstance(x, (list, tuple)):
        return type(x)([cast(value, dtype) for value in x])
    if not is_eligible(x) or x.dtype is dtype:
        return x
    if (x.dtype is torch.float32 and x.requires_grad and x.is_leaf and not is_view(x)
            and torch.is_autocast_cache_enabled() and dtype is torch.get_autocast_dtype("sim")):
        weight, copy = _cast_weights.get(id(x), (None, None))
        if weight is None or weight() is not x:
            copy = x.to(dtype)
            _cast_weights[id(x)] = weakref.ref(x), copy
        return copy
    return x.to(dtype)


def widest(args) -> torch.dtype:
    """The dtype that the promote list runs in: float32 if any input is float32, else autocast's own dtype."""
    lower = torch.get_autocast_dtype("sim")
    wide = lower
    for x in args:
        for value in x if isinstance(x, (list, tuple)) else (x,):
            if is_eligible(value) and value.dtype is not wide:
                if torch.float32 not in (value.dtype, wide):
                    raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
                wide = torch.float32
    return wide


def call_cast(op, args, kwargs, dtype):
    args = [cast(x, dtype) for x in reversed(args)][::-1]  # CUDA's kernels cast the last argument first
    return op(*args, **{name: cast(value, dtype) for name, value in kwargs.items()})


def _lower_precision(op):
    return lambda args, kwargs: call_cast(op, args, kwargs, torch.get_autocast_dtype("sim"))


def _float32(op):
    return lambda args, kwargs: call_cast(op, args, kwargs, torch.float32)


def _promote(op):
    return lambda args, kwargs: call_cast(op, args, kwargs, widest((*args, *kwargs.values())))


def _unchanged(op):
    return lambda args, kwargs: op(*args, **kwargs)


def _float32_output(op):
    """Ask the operator for a float32 result, unless the caller asked for a dtype: the input is not copied."""
    place = [argument.name for argument in schema_of(op).arguments].index("dtype")

    def run(args, kwargs):
        if is_eligible(args[0]):
            if len(args) > place and args[place] is None:
                args = (*args[:place], torch.float32, *args[place + 1:])
            elif len(args) <= place and kwargs.get("dtype") is None:
                kwargs = {**kwargs, "dtype": torch.float32}
        return op(*args, **kwargs)
    return run


def _norm(op, with_dtype):
    """`norm` has other overloads for the dtype of its result; they take it last."""
    arguments = schema_of(op).arguments
    places = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.name != "self"}

    def run(args, kwargs):
        given = {**defaults, **dict(zip(places, args, strict=False)), **kwargs}
        dtype = torch.float32 if is_eligible(given["self"]) else given["self"].dtype
        return with_dtype(*(given[name] for name in places), dtype=dtype)
    return run


def _banned(op):
    def run(args, kwargs):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Leave out the "
            "sigmoid before it and use binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe.")
    return run


def find(name: str):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def register() -> torch.library.Library:
    """Register every list; the kernels live as long as the library that this returns."""
    library = torch.library.Library("aten", "IMPL")

    def add(name, policy):
        op = find(name)
        on_cuda = policy(op)
        on_cpu = (_lower_precision if name in CPU_LOWER_PRECISION else
                  _float32 if name in CPU_FLOAT32 else _unchanged)(op)

        def kernel(*args, **kwargs):
            with ExcludeDispatchKeyGuard(AUTOCAST):
                return (on_cpu if _cpu_lists else on_cuda)(args, kwargs)
        library.impl(name, kernel, "AutocastPrivateUse1")

    for names, policy in ((LOWER_PRECISION, _lower_precision), (FLOAT32, _float32), (FLOAT32_OUTPUT, _float32_output),
                          (PROMOTE, _promote), (["binary_cross_entropy"], _banned)):
        for name in names:
            packet, _, overload = name.partition(".")
            if overload in ("", *getattr(getattr(aten, packet, None), "overloads", list)()) and hasattr(aten, packet):
                add(name, policy)  # an operator that this version of PyTorch does not have is left out
    add("norm.Scalar", lambda op: _norm(op, aten.norm.ScalarOpt_dtype))
    add("norm.ScalarOpt_dim", lambda op: _norm(op, aten.norm.ScalarOpt_dim_dtype))
    return library


@contextlib.contextmanager
def autocast_rules(cpu_lists: bool = False):
    """Within it the cache of cast weights ends with the outermost autocast; cpu_lists: cast what the CPU would."""
    global _cpu_lists
    clear = torch.clear_autocast_cache

    def clear_autocast_cache():
        _cast_weights.clear()
        clear()

    _cpu_lists, torch.clear_autocast_cache = cpu_lists, clear_autocast_cache
    try:
        yield
    finally:
        _cpu_lists, torch.clear_autocast_cache = False, clear
        _cast_weights.clear()
