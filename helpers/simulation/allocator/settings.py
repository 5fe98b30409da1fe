"""The settings of PyTorch's allocator that `PYTORCH_ALLOC_CONF` names, as c10/core/AllocatorConfig.cpp has them."""

from dataclasses import dataclass

from helpers.simulation.allocator.blocks import LARGE_BUFFER

MIN_BLOCK = 512  # kMinBlockSize: a block is a multiple of this
MIB = 2**20
INTERVALS = 16  # kRoundUpPowerOfTwoIntervals: of sizes 1 MiB, 2 MiB, ... 32 GiB and above


@dataclass(frozen=True)
class Settings:
    """What may be set; the defaults are PyTorch's. Raises TypeError or ValueError, one sentence, as PyTorch refuses it.

    max_split_size: bytes, at least 20 MiB; a block of so many bytes or more is never split, and is used only for a
    request that is as large. garbage_collection_threshold: a fraction of the memory allowed; above it cached segments
    that nobody asked for in a while go back before new memory is taken. (PyTorch does so only where
    `set_per_process_memory_fraction` was called.) roundup_power2_divisions: round a request up to the next of so many
    equal steps between two powers of two; a number for all sizes, or one for each of 16 sizes from 1 MiB on.
    """

    expandable_segments: bool = False
    max_split_size: int | None = None
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: int | tuple[int, ...] = 0

    def __post_init__(self):
        if not isinstance(self.expandable_segments, bool):
            raise TypeError(f"expandable_segments must be True or False, got {self.expandable_segments!r}.")
        split, threshold = self.max_split_size, self.garbage_collection_threshold
        if split is not None and (not isinstance(split, int) or isinstance(split, bool) or split < LARGE_BUFFER):
            raise ValueError(f"max_split_size must be at least {LARGE_BUFFER} bytes (20 MiB), got {split!r}.")
        if not isinstance(threshold, int | float) or isinstance(threshold, bool) or not 0 <= threshold < 1:
            raise ValueError(f"garbage_collection_threshold must be from 0 to 1, got {threshold!r}.")
        steps = self.roundup_power2_divisions
        if not (isinstance(steps, tuple) and len(steps) == INTERVALS or isinstance(steps, int)):
            raise ValueError(f"roundup_power2_divisions must be a number or {INTERVALS} of them, got {steps!r}.")
        for number in steps if isinstance(steps, tuple) else (steps,):
            if not isinstance(number, int) or number < 0 or number & (number - 1):
                raise ValueError(f"roundup_power2_divisions must be a power of 2, or 0, got {number!r}.")

    def __str__(self) -> str:
        """As `PYTORCH_ALLOC_CONF` is written; an empty text for the defaults."""
        parts = ["expandable_segments:True"] * self.expandable_segments
        if self.max_split_size is not None:
            parts.append(f"max_split_size_mb:{self.max_split_size // MIB}")
        if self.garbage_collection_threshold:
            parts.append(f"garbage_collection_threshold:{self.garbage_collection_threshold:g}")
        steps = self.roundup_power2_divisions
        if isinstance(steps, tuple) and len(set(steps)) == 1:
            steps = steps[0]
        if isinstance(steps, tuple):
            sizes = ",".join(f"{2**place}:{number}" for place, number in enumerate(steps))
            parts.append(f"roundup_power2_divisions:[{sizes}]")
        elif steps:
            parts.append(f"roundup_power2_divisions:{steps}")
        return ",".join(parts)

    def round_size(self, nbytes: int) -> int:
        """The size of the block that `nbytes` bytes get."""
        divisions = self.roundup_power2_divisions
        if divisions:
            if isinstance(divisions, tuple):
                divisions = divisions[min(max(nbytes.bit_length() - 21, 0), INTERVALS - 1)]
            if divisions > 1 and nbytes > MIN_BLOCK * divisions:
                step = (1 << (nbytes.bit_length() - 1)) // divisions
                return -(-nbytes // step) * step
        return max(MIN_BLOCK, -(-nbytes // MIN_BLOCK) * MIN_BLOCK)
