"""What a training run did with memory: the answer that a card gives, the same for a real and a simulated one.

All sizes are bytes; GiB = 2**30 bytes.
"""

import dataclasses
import functools

from helpers.measuring.snapshot_file import save
from helpers.units import GiB, MiB, format_bytes

ROLES = ("parameters", "gradients", "optimizer state", "activations", "batch", "temporaries")
PHASES = ("setup", "forward", "backward", "optimizer step")


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """One block of memory and the tensor it was first allocated for.

    module: path of the module that was running ("blocks.3.attention", "" outside any); operator: what
    allocated it ("aten._softmax"); bytes: what the allocator booked, so at least the tensor's own size.
    """

    module: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    role: str
    phase: str

    def __str__(self) -> str:
        where = self.module or self.phase
        tensor = f"{self.operator} {list(self.shape)} {self.dtype}"
        return f"{format_bytes(self.bytes):>11}  {self.role:<15}  {where}: {tensor}"


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Memory after each allocation and each free, in the order they happened.

    by_role: for each of `ROLES` the bytes alive after the event. A tensor has one role from birth to death: the
    most telling it ever earned (a gradient is a gradient from the moment its memory is taken).
    reserved: what the caching allocator held, in bytes; None on a real card. peak: index of the event at which the
    allocator's peak was reached, or of the last event before an out-of-memory error.
    """

    phase: list[str]
    step: list[int]
    by_role: dict[str, list[int]]
    reserved: list[int] | None
    peak: int

    def __len__(self) -> int:
        return len(self.phase)

    @functools.cached_property
    def allocated(self) -> list[int]:
        return [sum(sizes) for sizes in zip(*self.by_role.values(), strict=True)]


@dataclasses.dataclass
class Run:
    """One call of a training function on a card.

    fits: False after an out-of-memory error, whose message is `error`, whose failing allocation is `request`.
    peak_allocated, peak_reserved: bytes, PyTorch's `max_memory_allocated` and `max_memory_reserved`.
    live_at_peak: every tensor alive at the peak, or at the error, largest first; `roles_at_peak` are its sums.
    flops: floating-point operations of matrix products, convolutions and attention, a multiply-add counted as two.
    seconds: median time of an optimizer step without recording; None on a simulated card.
    estimated_seconds: roofline estimate of an optimizer step (roofline.py), a lower bound, not a measurement.
    held_before: bytes that something else, an earlier run's error perhaps, held when the run began.
    left_behind: bytes that were still held when the run was over and its own names were gone.
    without_gradient: trainable parameters that had no gradient at any optimizer step.
    driver_calls, retries: cudaMalloc calls, and how often cached memory was given back to retry one.
    history: what the allocator did, for `save_snapshot`; None unless the run was asked to record it.
    """

    card_name: str
    is_simulated: bool
    capacity: int
    batch_size: int
    fits: bool
    error: str | None
    peak_allocated: int
    peak_reserved: int
    timeline: Timeline
    live_at_peak: list[TensorRecord]
    request: TensorRecord | None
    flops: int
    seconds: float | None
    estimated_seconds: float
    held_before: int
    left_behind: int
    without_gradient: tuple[str, ...]
    has_gradients: bool
    driver_calls: int
    retries: int
    history: object | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def roles_at_peak(self) -> dict[str, int]:
        """Bytes by role at the peak, or at the error; every role is there, in the order of `ROLES`."""
        sizes = dict.fromkeys(ROLES, 0)
        for record in self.live_at_peak:
            sizes[record.role] += record.bytes
        return sizes

    @property
    def culprits(self) -> list[TensorRecord]:
        """The ten largest tensors alive at the peak, or at the error."""
        return self.live_at_peak[:10]

    def save_snapshot(self, path) -> None:
        """Write the memory snapshot that `torch.cuda.memory._dump_snapshot(path)` would have written on a real card: at
        the error, or when `train` had returned. Needs `card.run(..., record_history=True)`; ValueError without it.
        """
        save(self, path)

    def __str__(self) -> str:
        notes = ""
        if self.fits and self.without_gradient:
            names = ", ".join(self.without_gradient[:3])
            notes += f"; {len(self.without_gradient)} trainable parameters got no gradient ({names} ...)"
        if self.held_before >= 64 * MiB:  # cuBLAS keeps less than that
            notes += f"; {format_bytes(self.held_before)} were held before it began"
        if self.left_behind:
            notes += f"; {format_bytes(self.left_behind)} still held by names outside the function"
        if not self.fits:
            asked = f", asked for {format_bytes(self.request.bytes)} more" if self.request else ""
            held = sum(self.roles_at_peak.values())
            return (f"batch {self.batch_size}: OUT OF MEMORY with {held / GiB:.2f} of {self.capacity / GiB:.2f} GiB "
                    f"allocated{asked}{notes}")
        if self.request:
            notes = f"; it caught an out-of-memory error on the way{notes}"
        return (f"batch {self.batch_size}: fits, peak {self.peak_allocated / GiB:.2f} GiB allocated, "
                f"{self.peak_reserved / GiB:.2f} of {self.capacity / GiB:.2f} GiB reserved{notes}")

    def __repr__(self) -> str:
        return f"<Run {self}>"
