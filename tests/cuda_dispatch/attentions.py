"""Calls of scaled_dot_product_attention: which kernel runs and what it allocates, forward and backward."""

import itertools

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, HEADS = 2, 4
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
NAMES = {SDPBackend.FLASH_ATTENTION: "flash", SDPBackend.EFFICIENT_ATTENTION: "efficient", SDPBackend.MATH: "math",
         SDPBackend.CUDNN_ATTENTION: "cudnn"}


def heads_first(device, dtype, length, head_dim, heads=HEADS):
    return torch.empty(BATCH, heads, length, head_dim, dtype=dtype, device=device)


def heads_second(device, dtype, length, head_dim, heads=HEADS):
    """As a Linear layer gives it: [batch, length, heads, head dim], transposed."""
    return torch.empty(BATCH, length, heads, head_dim, dtype=dtype, device=device).transpose(1, 2)


def part_of_qkv(device, dtype, length, head_dim, heads=HEADS):
    """One part of a fused projection."""
    return torch.empty(BATCH, length, 3, heads, head_dim, dtype=dtype, device=device).permute(2, 0, 3, 1, 4)[1]


def shifted(device, dtype, length, head_dim, heads=HEADS):
    """Starts one element into its storage."""
    return torch.empty(BATCH * heads * length * head_dim + 1, dtype=dtype, device=device)[1:].view(
        BATCH, heads, length, head_dim)


def strided(device, dtype, length, head_dim, heads=HEADS):
    """The elements of a head do not lie side by side."""
    return torch.empty(BATCH, heads, head_dim, length, dtype=dtype, device=device).transpose(2, 3)


LAYOUTS = {layout.__name__: layout for layout in (heads_first, heads_second, part_of_qkv, shifted, strided)}
MASKS = {
    "no mask": lambda device, dtype, q, k: None,
    "bool [q, k]": lambda device, dtype, q, k: torch.empty(q, k, dtype=torch.bool, device=device),
    "padding": lambda device, dtype, q, k: torch.empty(BATCH, 1, 1, k, dtype=torch.bool, device=device),
    "numbers": lambda device, dtype, q, k: torch.empty(BATCH, HEADS, q, k, dtype=dtype, device=device),
    "expanded": lambda device, dtype, q, k: torch.empty(BATCH, 1, 1, k, dtype=dtype, device=device).expand(
        BATCH, HEADS, q, k),
}


def settings():
    """Keyword arguments of `run_case`, as few as show every rule."""
    for dtype, head_dim, mask, gradient in itertools.product(
            DTYPES, (64, 80, 96, 100, 128, 192, 200, 256, 264), MASKS, (True, False)):
        yield {"dtype": dtype, "head_dim": head_dim, "mask": mask, "gradient": gradient}
    for dtype, mask, (q, k) in itertools.product(DTYPES, MASKS, ((77, 77), (128, 77), (1, 40), (40, 1), (33, 64))):
        yield {"dtype": dtype, "mask": mask, "q": q, "k": k}
    for dtype, layout, mask in itertools.product(DTYPES, LAYOUTS, ("no mask", "bool [q, k]")):
        yield {"dtype": dtype, "layout": layout, "mask": mask}
    for dtype, (q, k) in itertools.product(DTYPES, ((64, 64), (64, 48))):
        yield {"dtype": dtype, "is_causal": True, "q": q, "k": k}
    for dtype, dropout, head_dim in itertools.product(DTYPES, (0.1, 0.125), (64, 208, 256)):
        yield {"dtype": dtype, "dropout": dropout, "head_dim": head_dim}
    for dtype, kv_heads, gradient in itertools.product(DTYPES, (1, 2, 4), (True, False)):
        yield {"dtype": dtype, "kv_heads": kv_heads, "gradient": gradient}
    for dtype, kv_heads in itertools.product(DTYPES, (1, 2)):
        yield {"dtype": dtype, "kv_heads": kv_heads, "enable_gqa": False}
    for dtype, mask in itertools.product(DTYPES, ("no mask", "bool [q, k]")):
        yield {"dtype": dtype, "mask": mask, "without_batch": True}
        yield {"dtype": dtype, "mask": mask, "without_batch": True, "head_dim": 100, "gradient": False}
    allowed_sets = (*NAMES.values(), "efficient, math", "flash, efficient", "cudnn, flash")
    for dtype, allowed in itertools.product(DTYPES, allowed_sets):
        yield {"dtype": dtype, "allowed": allowed}
    for head_dim in (7, 8, 12, 20):
        for dtype in DTYPES:
            yield {"dtype": dtype, "head_dim": head_dim}


def kernel(rows: list) -> str:
    """The kernel that ran, from what `run_case` saw."""
    if rows == ["RuntimeError"]:
        return "refused"
    return next((name for name in NAMES.values() for row in rows if f"_{name}_attention" in row[0]), "math")


def run_case(device, dtype, head_dim=64, mask="no mask", gradient=True, q=64, k=64, layout="heads_first",
             is_causal=False, dropout=0.0, kv_heads=None, enable_gqa=True, allowed=None, without_batch=False) -> list:
    """What the call allocates, forward and, if gradient, backward; the error's type if it is refused."""
    from tests.cuda_dispatch.allocations import Allocations

    make, dtype = LAYOUTS[layout], DTYPES[dtype]
    query = make(device, dtype, q, head_dim).requires_grad_(gradient)
    key, value = (make(device, dtype, k, head_dim, kv_heads or HEADS).requires_grad_(gradient) for _ in range(2))
    mask = MASKS[mask](device, dtype, q, k)
    inputs = [x[0] for x in (query, key, value)] if without_batch else (query, key, value)
    backends = list(NAMES) if allowed is None else [b for b, name in NAMES.items() if name in allowed.split(", ")]
    with Allocations(device) as allocations, sdpa_kernel(backends):
        try:
            out = F.scaled_dot_product_attention(*inputs, mask, dropout, is_causal,
                                                 enable_gqa=enable_gqa and kv_heads is not None)
        except RuntimeError:
            return ["RuntimeError"]
        if gradient:
            out.sum().backward()
    return allocations.rows
