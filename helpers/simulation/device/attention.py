"""Which attention kernel CUDA would run, and what it allocates: scaled_dot_product_attention on the simulated device.

The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h, read at 2.13 and 2.14;
the preparation of inputs is that of aten/src/ATen/native/transformers/attention.cpp. They are the rules of the PyTorch
that is installed. Nested tensors are not modelled.
"""

import contextlib

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad

from helpers.torch_private import (
    cudnn_attention,
    efficient_attention,
    flash_attention,
    math_attention,
    sdp_priority_order,
)

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
# 2.14: the efficient kernel takes fewer key heads than query heads, every fused kernel takes a single head of keys and
# values for all heads of queries, and inputs without a batch dimension.
SINCE_2_14 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
DEFAULT_ORDER = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

_capability, _only_math = (8, 6), False


@contextlib.contextmanager
def attention_kernels(capability: tuple[int, int], only_math: bool = False):
    """Within it, choose as a card of this compute capability does; only_math: no fused kernels at all."""
    global _capability, _only_math
    before = _capability, _only_math
    _capability, _only_math = tuple(capability), only_math
    try:
        yield
    finally:
        _capability, _only_math = before


def _needs_gradient(*tensors) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _same_batch_and_heads(q, k, v, enable_gqa: bool) -> bool:
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    if enable_gqa:
        return k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0
    return q.shape[1] == k.shape[1] == v.shape[1] or (SINCE_2_14 and k.shape[1] == v.shape[1] == 1)


def _dense(q, k, v, mask) -> bool:
    """Four dimensions, sequences that are not empty, and elements of a head side by side in memory."""
    return (q.dim() == k.dim() == v.dim() == 4 and q.shape[2] > 0 and k.shape[2] > 0
            and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and (mask is None or mask.stride(-1) == 1))


def _half_types(capability):
    return HALF if capability >= (8, 0) else (torch.float16,)


def flash_can(q, k, v, mask, dropout, is_causal, enable_gqa, capability) -> bool:
    """Half precision, no mask, head dim at most 256, compute capability 8.0 to 12.1."""
    if not torch.backends.cuda.flash_sdp_enabled() or mask is not None or not _dense(q, k, v, mask):
        return False
    head_dim = q.shape[-1]
    if not (head_dim == k.shape[-1] == v.shape[-1] and head_dim <= 256 and (8, 0) <= capability <= (12, 1)):
        return False
    little_shared_memory = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    trainable = head_dim <= 192 or (head_dim > 224 and dropout == 0) or not little_shared_memory
    if not trainable and _needs_gradient(q, k, v):
        return False
    if is_causal and q.shape[2] != k.shape[2]:
        return False
    return (q.dtype == k.dtype == v.dtype and q.dtype in _half_types(capability)
            and _same_batch_and_heads(q, k, v, enable_gqa))


def efficient_can(q, k, v, mask, dropout, is_causal, enable_gqa, capability) -> bool:
    """Any mask; float32 too; head dims a multiple of what the matrix units load at once."""
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or not _dense(q, k, v, mask):
        return False
    if not (5, 0) <= capability <= (12, 1):
        return False
    half = q.dtype in HALF
    alignment = 4 if capability >= (8, 0) else 1
    if capability >= (8, 0) or (capability >= (7, 0) and half):
        alignment = max(alignment, 8 if half else 4)
    if q.shape[-1] != k.shape[-1] or any(x.shape[-1] % alignment or not x.shape[-1] for x in (q, v)):
        return False
    if capability >= (8, 0) and any(x.storage_offset() % alignment for x in (q, k, v)):
        return False
    if not _same_batch_and_heads(q, k, v, enable_gqa and SINCE_2_14):
        return False
    types = (torch.float16, torch.float32, torch.bfloat16) if capability >= (8, 0) else (torch.float16, torch.float32)
    return q.dtype == k.dtype == v.dtype and q.dtype in types


def cudnn_can(q, k, v, mask, dropout, is_causal, enable_gqa, capability) -> bool:
    """Half precision, head dim a multiple of 8 and at most 128 (256 on 9.0 and 10.x), a mask that needs no gradient."""
    if not torch.backends.cuda.cudnn_sdp_enabled() or not _dense(q, k, v, mask):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    if not (8, 0) <= capability <= (12, 1) or not q.dtype == k.dtype == v.dtype or q.dtype not in HALF:
        return False
    if mask is not None and (mask.requires_grad or mask.dim() not in (2, 4)
                             or any(size not in (1, full) for size, full in zip(
                                 mask.shape[::-1], (k.shape[2], q.shape[2], q.shape[1], q.shape[0]), strict=False))):
        return False
    limit = 256 if capability[0] in (9, 10) else 128
    if any(x.shape[-1] > limit or x.shape[-1] % 8 for x in (q, v)) or dropout * 16 != int(dropout * 16):
        return False
    if _needs_gradient(q, k, v) and limit == 256 and max(q.shape[-1], v.shape[-1]) > 128 \
            and (q.shape[-1], v.shape[-1]) not in ((192, 128), (256, 256)):
        return False
    if k.shape[2] == 1 or (dropout and q.shape[2] == 1):
        return False
    return _same_batch_and_heads(q, k, v, enable_gqa)


CAN = {SDPBackend.FLASH_ATTENTION: flash_can, SDPBackend.EFFICIENT_ATTENTION: efficient_can,
       SDPBackend.CUDNN_ATTENTION: cudnn_can}


def choose(q, k, v, mask=None, dropout=0.0, is_causal=False, enable_gqa=False, capability=(8, 6)) -> SDPBackend:
    """The first kernel, in PyTorch's order of preference, whose conditions these inputs meet.

    q, k, v: [batch, heads, sequence, head dim]. Honours `torch.nn.attention.sdpa_kernel`. Raises RuntimeError when no
    allowed kernel takes these inputs.
    """
    order = [SDPBackend(number) for number in sdp_priority_order()]
    if order[:3] == DEFAULT_ORDER and capability[0] in (9, 10):
        order = [SDPBackend.CUDNN_ATTENTION, *order]  # with the cuDNN (above 9.15) of PyTorch's CUDA 13 wheels
    for backend in order:
        if backend == SDPBackend.MATH:
            if torch.backends.cuda.math_sdp_enabled():
                return backend
        elif backend in CAN and CAN[backend](q, k, v, mask, dropout, is_causal, enable_gqa, capability):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _additive(mask, dtype):
    """A boolean mask as numbers to add."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device))


def _padded(x, alignment: int):
    """The last dimension filled up to a multiple of `alignment`."""
    missing = -x.shape[-1] % alignment
    return pad(x, [0, missing]) if missing else x


def _aligned_mask(mask, q, k):
    """The efficient kernel reads rows of the mask that start at multiples of 8 elements."""
    if any(stride % 8 for stride in mask.stride()[:-1]) or mask.stride(-1) != 1:
        size = mask.shape[-1]
        mask = pad(mask, [0, 8 - size % 8])[..., :size]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """`scaled_dot_product_attention` by the kernel that CUDA would choose."""
    if SINCE_2_14 and q.dim() == k.dim() == v.dim() == 3:
        batch = [x.unsqueeze(0) for x in (q, k, v)]
        mask = attn_mask
        while mask is not None and mask.dim() < 4:
            mask = mask.unsqueeze(0)
        if not _only_math and choose(*batch, mask, dropout_p, is_causal, enable_gqa, _capability) != SDPBackend.MATH:
            return attention(*batch, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa).squeeze(0)
    backend = SDPBackend.MATH if _only_math else choose(
        q, k, v, attn_mask, dropout_p, is_causal, enable_gqa, _capability)
    mask = _additive(attn_mask, q.dtype)
    if backend == SDPBackend.FLASH_ATTENTION:
        size = q.shape[-1]
        scale = size ** -0.5 if scale is None else scale  # of the head as given, not as padded
        out = flash_attention(
            *(_padded(x, 8) for x in (q, k, v)), dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size] if out.shape[-1] != size else out
    if backend == SDPBackend.EFFICIENT_ATTENTION:
        mask = mask if mask is None else _aligned_mask(mask, q, k)
        return efficient_attention(
            q, k, v, mask, _needs_gradient(q, k, v), dropout_p, is_causal, scale=scale)[0]
    if backend == SDPBackend.CUDNN_ATTENTION:
        return cudnn_attention(
            q, k, v, mask, _needs_gradient(q, k, v), dropout_p, is_causal, False, scale=scale)[0]
    return math_attention(
        q, k, v, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]


def register() -> torch.library.Library:
    """Register the kernel; it lives as long as the library that this returns."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    return library
