"""Known cards: what the driver reports, what the CUDA context takes, and what is left for PyTorch."""

import dataclasses

from helpers.units import GiB, MiB


@dataclasses.dataclass(frozen=True)
class CardSpec:
    """One model of graphics card.

    total: bytes that the driver reports. context: bytes that the CUDA context of one process takes; measured values
    differ by driver, most are between 0.25 and 0.7 GiB. other: bytes kept free for a screen and other programs.
    compute_capability: decides which kernels PyTorch picks. flops_fp32, flops_half: peak floating-point operations a
    second, dense, from the maker's data sheet; bandwidth: bytes a second of device memory, likewise.
    """

    name: str
    total: int
    context: int
    other: int
    compute_capability: tuple[int, int]
    flops_fp32: float
    flops_half: float
    bandwidth: float

    @property
    def capacity(self) -> int:
        """Bytes that PyTorch's allocator can reserve."""
        return self.total - self.context - self.other

    @property
    def workspace(self) -> int:
        """Bytes of one cuBLAS workspace (aten/src/ATen/cuda/CublasHandlePool.cpp: larger on Hopper only)."""
        return 33_554_432 if self.compute_capability == (9, 0) else 8_519_680


def spec(name, total, context, other, capability, fp32, half, bandwidth) -> CardSpec:
    total, context, other = (int(size * GiB) // MiB * MiB for size in (total, context, other))
    return CardSpec(name, total, context, other, capability, fp32 * 1e12, half * 1e12, bandwidth * 1e9)


# The reference capacity of the RTX 3090 is 22.5 GiB: 23.69 GiB less a context of 0.45 and 0.74 for a screen and others.
CARDS = {card.name: card for card in (
    spec("RTX 3060 12GB", 11.76, 0.35, 0.30, (8, 6), 12.7, 51.0, 360),
    spec("T4", 14.56, 0.30, 0.0, (7, 5), 8.1, 65.0, 320),
    dataclasses.replace(spec("RTX 3090", 23.69, 0.45, 0.0, (8, 6), 35.6, 71.0, 936),
                        other=int(23.69 * GiB) // MiB * MiB - int(0.45 * GiB) // MiB * MiB - int(22.5 * GiB)),
    spec("RTX 4090", 23.52, 0.46, 0.30, (8, 9), 82.6, 165.2, 1008),
    spec("A10G", 21.99, 0.28, 0.0, (8, 6), 31.5, 70.0, 600),
    spec("L4", 22.03, 0.40, 0.0, (8, 9), 30.3, 121.0, 300),
    spec("A100 40GB", 39.39, 0.47, 0.0, (8, 0), 19.5, 312.0, 1555),
    spec("A100 80GB", 79.15, 0.47, 0.0, (8, 0), 19.5, 312.0, 2039),
    spec("H100 80GB", 79.11, 0.55, 0.0, (9, 0), 66.9, 989.0, 3350),
    spec("H200", 139.80, 0.55, 0.0, (9, 0), 66.9, 989.0, 4800),
    # 16160 MiB and a context of 1343 MiB: measured in 2022 (see tests/data/published_peaks.json); today's is smaller.
    spec("V100 16GB", 15.782, 1.312, 0.0, (7, 0), 15.7, 125.0, 900),
)}


def find_card(name: str) -> CardSpec:
    """The card called `name`; ValueError that lists the known ones otherwise."""
    if name not in CARDS:
        raise ValueError(f"Unknown card {name!r}. Known cards: {', '.join(CARDS)}.")
    return CARDS[name]
