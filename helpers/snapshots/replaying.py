"""The recorded requests once more, through the project's allocator, with other settings or on another card."""

import dataclasses

from helpers.simulation.allocator.caching_allocator import AllocationFailed, CachingAllocator, SimulatedDriver
from helpers.simulation.allocator.settings import Settings
from helpers.snapshots.frames import Place
from helpers.snapshots.reading import ALLOC, FAIL, FREE, GIVE, TAKE
from helpers.snapshots.unpickling import Progress
from helpers.units import GiB, format_bytes

NO_LIMIT = 2**50


@dataclasses.dataclass(frozen=True)
class Replay:
    """What would have become of it. capacity: bytes for PyTorch, None for no limit. events: how many could be replayed;
    all of them, the failed request included, where it fits. failed: place of the request that did not. held: bytes that
    were allocated at the end, or then; unused: reserved without a tensor, then. ends_at_error: the recording ends with
    a request that failed, so nobody knows what would have come next."""

    settings: Settings
    capacity: int | None
    fits: bool
    events: int
    failed: Place | None
    peak_allocated: int
    peak_reserved: int
    held: int
    unused: int
    retries: int
    driver_calls: int
    ends_at_error: bool

    def __str__(self) -> str:
        with_ = str(self.settings) or "default settings"
        card = "" if self.capacity is None else f" of {self.capacity / GiB:.2f}"
        if self.fits:
            share = 1 - self.peak_allocated / self.peak_reserved if self.peak_reserved else 0
            fits = "this request fits" if self.ends_at_error else "fits"
            return (f"{with_}: {fits}, peak {self.peak_reserved / GiB:.2f}{card} GiB reserved, {share:.0%} more than "
                    f"tensors need; {self.driver_calls} driver calls")
        return (f"{with_}: OUT OF MEMORY after {self.events} events, {self.held / GiB:.2f}{card} GiB allocated, "
                f"{format_bytes(self.unused)} reserved but unallocated")


class Allocators:
    """An allocator for each stream, since a stream does not use another's cache, on one driver."""

    def __init__(self, driver, settings: Settings):
        self.driver, self.settings, self.by_stream = driver, settings, {}
        self.peak_allocated = self.peak_reserved = 0

    def of(self, stream: int) -> CachingAllocator:
        if stream not in self.by_stream:
            self.by_stream[stream] = CachingAllocator(self.driver, settings=self.settings)
        return self.by_stream[stream]

    def malloc(self, nbytes: int, stream: int):
        allocator = self.of(stream)
        try:
            block = allocator.malloc(nbytes)
        except AllocationFailed:
            if len(self.by_stream) == 1:
                raise
            self.empty_cache()  # of the others, too
            block = allocator.malloc(nbytes)
        self.peak_allocated = max(self.peak_allocated, self.sum("allocated"))
        self.peak_reserved = max(self.peak_reserved, self.sum("reserved"))
        return block

    def empty_cache(self) -> None:
        for allocator in self.by_stream.values():
            allocator.empty_cache()

    def sum(self, name: str) -> int:
        return sum(getattr(allocator, name) for allocator in self.by_stream.values())


def replay(snapshot, capacity: int | None, changes: dict) -> Replay:
    """See `Snapshot.replay`. Raises TypeError or ValueError, one sentence, for a setting that cannot be."""
    unknown = changes.keys() - {field.name for field in dataclasses.fields(Settings)}
    if unknown:
        raise TypeError(f"There is no setting {min(unknown)!r}. There are: capacity, "
                        f"{', '.join(field.name for field in dataclasses.fields(Settings))}.")
    if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
        raise ValueError(f"capacity is a number of bytes, got {capacity!r}.")
    settings = dataclasses.replace(snapshot.settings, **changes)
    capacity = snapshot.capacity if capacity is None else capacity
    recording, allocators = snapshot.recording, Allocators(SimulatedDriver(capacity or NO_LIMIT), settings)
    blocks, event, failed = {}, -1, None
    recording_order = recording.addresses.argsort()
    requested, streams = recording.requested.tolist(), recording.stream.tolist()
    emptied, progress = emptied_by_hand(snapshot), Progress("replaying", len(snapshot))
    try:
        for block in recording_order[recording.birth[recording_order] < 0].tolist():
            blocks[block] = allocators.malloc(requested[block], streams[block])
        for event, (kind, item) in enumerate(zip(recording.kinds, recording.items, strict=True)):
            if event in emptied:
                allocators.empty_cache()
            if kind == ALLOC:
                blocks[item] = allocators.malloc(requested[item], streams[item])
            elif kind == FREE:
                block = blocks.pop(item)
                allocators.of(streams[item]).free(block)
            elif kind == FAIL:
                stream = streams[0] if streams else 0
                allocators.of(stream).free(allocators.malloc(recording.failures[item][0], stream))
            if not event % 50_000:
                progress.at(event)
    except AllocationFailed:
        failed = failing_place(recording, event)
    progress.close()
    held, reserved = allocators.sum("allocated"), allocators.sum("reserved")
    return Replay(settings, capacity, failed is None, event + (failed is None), failed, allocators.peak_allocated,
                  allocators.peak_reserved, held, reserved - held, allocators.sum("retries"),
                  allocators.sum("driver_calls"), FAIL in recording.kinds[-1:])


def failing_place(recording, event: int) -> Place:
    if event < 0:  # not even what was there before the recording
        return Place("(before the recording)", "", "unknown", "unknown", False)
    item = recording.items[event]
    number = recording.place[item] if recording.kinds[event] == ALLOC else recording.failures[item][2]
    return recording.places[int(number)]


def emptied_by_hand(snapshot) -> set[int]:
    """The events before which the code called `empty_cache()`: segments went back although the driver had room.

    Within a request the allocator gives them back only when the driver has refused, and then takes one at once.
    """
    recording, reserved = snapshot.recording, snapshot.reserved.tolist()
    if recording.settings.garbage_collection_threshold or recording.settings.max_split_size:
        return set()  # these give back by themselves
    limit, found = snapshot.capacity or max(reserved), set()
    gave = took = None
    for event, (kind, item) in enumerate(zip(recording.kinds, recording.items, strict=True)):
        if kind == GIVE:
            gave = event if gave is None else gave
        elif kind == TAKE and took is None:
            took = recording.driver[item][1]
        elif kind in (ALLOC, FREE, FAIL):
            if gave is not None and kind != FAIL and (took is None or reserved[gave] + took <= limit):
                found.add(gave)
            gave = took = None
    return found
