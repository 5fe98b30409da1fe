"""A memory snapshot as an answer: what was in memory, for which line, what leaked, which trouble it is."""

import contextlib
import dataclasses
import functools
import gc

import numpy

from helpers.simulation.allocator.caching_allocator import Segment, get_allocation_size
from helpers.snapshots import comparing, diagnosis, places_in_memory, replaying, steps
from helpers.snapshots.frames import Place
from helpers.snapshots.reading import FAIL, GIVE, TAKE, Recording, read
from helpers.snapshots.unpickling import load
from helpers.units import format_bytes


@dataclasses.dataclass(frozen=True)
class Culprit:
    """What one line holds: bytes in `count` blocks. phase and role are "unknown" where no frame shows them."""

    line: str
    inside: str
    phase: str
    role: str
    bytes: int
    count: int

    def __str__(self) -> str:
        known = ", ".join(word for word in (self.phase, self.role) if word != "unknown" and word not in self.line)
        inside = f" ({self.inside})" if self.inside else ""
        return f"{format_bytes(self.bytes):>11} in {self.count:5} blocks  {self.line}{inside}{known and f': {known}'}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The request that failed. bytes: rounded, as the file has it; segment: what the driver was asked for, the "Tried
    to allocate" of PyTorch's message; device_free: what the driver still had; event: how many came before it."""

    bytes: int
    segment: int
    device_free: int
    place: Place
    event: int


class Snapshot:
    """What `open_snapshot` gives. All sizes are bytes.

    allocated, reserved: arrays, after 0, 1, 2, ... events. when: the number of events before the request that failed,
    or at the peak: the moment that `culprits`, `segments` and `cached` speak of. failure: None where nothing failed.
    total: of the card, as the caller said; None where unknown.
    """

    def __init__(self, recording: Recording, total: int | None = None, name: str = "snapshot"):
        self.recording, self.total, self.name = recording, total, name
        events, blocks = len(recording.kinds), recording
        change = numpy.zeros(events + 1, dtype=numpy.int64)
        change[blocks.birth + 1] += blocks.sizes * (blocks.birth >= 0)  # no two blocks are born at one event
        change[0] = blocks.sizes[blocks.birth < 0].sum()
        died = blocks.death < events
        change[blocks.death[died] + 1] -= blocks.sizes[died]
        self.allocated = numpy.cumsum(change)
        kinds, items = (numpy.array(column) for column in (recording.kinds, recording.items))
        change = numpy.zeros(events + 1, dtype=numpy.int64)
        sizes = numpy.array([size for _, size in recording.driver], dtype=numpy.int64)
        for kind, sign in ((TAKE, 1), (GIVE, -1)):
            change[1:][kinds == kind] = sign * sizes[items[kinds == kind]]
        change[0] = sum(segment.size for segment in recording.segments) - change.sum()
        self.reserved = numpy.cumsum(change)
        failed = numpy.flatnonzero(kinds == FAIL)
        self.failure = self._failure(int(failed[-1])) if len(failed) else None
        self.peak = int(numpy.argmax(self.allocated))
        self.when = self.failure.event if self.failure else self.peak

    def _failure(self, event: int) -> Failure:
        size, free, place = self.recording.failures[self.recording.items[event]]
        return Failure(size, get_allocation_size(size), free, self.recording.places[place], event)

    def __len__(self) -> int:
        return len(self.recording.kinds)

    @property
    def settings(self):
        """The allocator's settings as the file says."""
        return self.recording.settings

    @property
    def capacity(self) -> int | None:
        """What PyTorch could have reserved at the error: what it had, and what the driver still had. None without."""
        return int(self.reserved[self.when]) + self.failure.device_free if self.failure else None

    @property
    def cached(self) -> int:
        """Reserved and in no tensor, at `when`."""
        return max(int(self.reserved[self.when] - self.allocated[self.when]), 0)

    @property
    def others(self) -> int | None:
        """Of the card's memory what neither PyTorch nor the driver had at the error: other programs, and the CUDA
        context of this one (a few hundred MiB). None where no request failed or `total` is not known."""
        return self.total - self.capacity if self.failure and self.total is not None else None

    def live(self, after: int) -> numpy.ndarray:
        """The numbers of the blocks in use after so many events."""
        return numpy.flatnonzero((self.recording.birth < after) & (self.recording.death >= after))

    @functools.cached_property
    def segments(self) -> list[Segment]:
        """What was reserved at `when`, with the free pieces in it."""
        return places_in_memory.segments_at(self.recording, self.when)

    @functools.cached_property
    def holders(self) -> list[Culprit]:
        """Who held what was in use at `when`, by the reader's source line, largest first."""
        blocks, found = self.live(self.when), {}
        places, sizes = self.recording.place[blocks], self.recording.sizes[blocks]
        held = numpy.bincount(places, sizes, len(self.recording.places)).astype(numpy.int64)
        counts = numpy.bincount(places, minlength=len(self.recording.places))
        for place, size, count in zip(self.recording.places, held.tolist(), counts.tolist(), strict=True):
            if count:
                key = (place.line, place.inside, place.phase, place.role)
                before = found.get(key, (0, 0))
                found[key] = (before[0] + size, before[1] + count)
        return sorted((Culprit(*key, *sums) for key, sums in found.items()), key=lambda one: (-one.bytes, one.line))

    @property
    def culprits(self) -> list[Culprit]:
        """The ten that hold most."""
        return self.holders[:10]

    @functools.cached_property
    def starts(self) -> numpy.ndarray:
        """The events at which a step after the first begins, as far as frames show it."""
        return steps.starts(self.recording)

    @functools.cached_property
    def leaks(self) -> list[steps.Leak]:
        """Lines whose blocks stay from step to step, more each time; largest first."""
        return steps.leaks(self)

    @functools.cached_property
    def reading(self) -> diagnosis.Reading:
        """Which trouble it is, why, and what helps."""
        return diagnosis.diagnose(self)

    def replay(self, capacity: int | None = None, **settings) -> replaying.Replay:
        """The same requests with other settings of the allocator, or on a card with `capacity` bytes for PyTorch.

        settings: fields of `Settings` (helpers/simulation/allocator/settings.py): expandable_segments, max_split_size
        (bytes), garbage_collection_threshold, roundup_power2_divisions. What is left out is as recorded.
        """
        return replaying.replay(self, capacity, settings)

    @functools.cached_property
    def agreement(self) -> comparing.Agreement:
        """How far the project's allocator, with the recorded settings, does what the recorded one did."""
        return comparing.compare(self)

    def __str__(self) -> str:
        from helpers.snapshots.report import summary

        return summary(self)


def open_snapshot(path, total: int | None = None, device: int | None = None) -> Snapshot:
    """Read a memory snapshot, of this project or of any CUDA card with PyTorch 2.1 or later; nothing in it is run.

    total: bytes of the card, the "total capacity" of the error message: the file does not say it, and without it nobody
    can tell whether other programs held memory. device: number of the GPU, where the file has several; the one with
    most events otherwise. Raises SnapshotError, one sentence, for a file that is none.
    """
    if total is not None and (not isinstance(total, int) or total < 2**30):
        raise ValueError(f"total is the card's memory in bytes, got {total!r}: write 24 * GiB.")
    with no_garbage_collection():
        return Snapshot(read(load(path), device), total, str(path))


@contextlib.contextmanager
def no_garbage_collection():
    """A million new dictionaries would have Python look for cycles among them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
