"""Makes of a snapshot's dictionaries what happened to every block: PyTorch 2.1 and later, keys may be missing."""

import dataclasses
from array import array

import numpy

from helpers.simulation.allocator.caching_allocator import Segment
from helpers.simulation.allocator.settings import INTERVALS, Settings
from helpers.snapshots.frames import Place, Places
from helpers.snapshots.unpickling import Progress, SnapshotError

ALLOC, FREE, TAKE, GIVE, FAIL = range(5)  # a block, a block back, a segment from the driver, one back, out of memory
DRIVER = {"segment_alloc": TAKE, "segment_map": TAKE, "segment_free": GIVE, "segment_unmap": GIVE}
LIMIT = 2**62  # no address and no size is as large


@dataclasses.dataclass
class Recording:
    """What a snapshot recorded, in the order it happened. Sizes and addresses are bytes.

    kinds, items: for each event its kind and what it is about: a number of a block (ALLOC, FREE), else a place in
    `driver` (TAKE, GIVE; address, bytes) or in `failures` (FAIL; bytes, bytes the driver still had, place).
    birth, death: for each block the event; -1 and len(kinds) where it lived before and after the recording. requested:
    bytes asked for; sizes: what that takes, rounded. place: number in `places`. segments: at the end. base: (bytes in
    use, bytes reserved) when the recording began. skipped: entries that could not be read.
    """

    kinds: array
    items: array
    driver: list[tuple[int, int]]
    failures: list[tuple[int, int, int]]
    addresses: numpy.ndarray
    requested: numpy.ndarray
    sizes: numpy.ndarray
    birth: numpy.ndarray
    death: numpy.ndarray
    place: numpy.ndarray
    stream: numpy.ndarray
    places: list[Place]
    segments: list[Segment]
    settings: Settings
    skipped: int


def read(data, device: int | None = None) -> Recording:
    """The recording of one device, the one with most events unless told. SnapshotError for what is no snapshot."""
    if isinstance(data, list):  # `torch.cuda.memory_snapshot()`: segments only
        data = {"segments": data}
    if not isinstance(data, dict) or not ("segments" in data or "device_traces" in data):
        raise SnapshotError(f"This pickle holds a {type(data).__name__} and no memory snapshot: it has neither "
                            "'segments' nor 'device_traces'.")
    traces = [trace if isinstance(trace, list) else [] for trace in listed(data.get("device_traces"))]
    if device is None:
        device = max(range(len(traces)), key=lambda number: len(traces[number]), default=0)
        if not any(traces):
            device = min((number(segment, "device") or 0 for segment in listed(data.get("segments"))), default=0)
    segments = [segment for segment in listed(data.get("segments")) if (number(segment, "device") or 0) == device]
    reader = Reader(settings_of(data, segments, traces[device] if device < len(traces) else []))
    reader.read_trace(traces[device] if device < len(traces) else [])
    reader.read_segments(segments)
    return reader.recording()


class Reader:
    """Goes through a trace once, then through the segments at its end."""

    def __init__(self, settings: Settings):
        self.settings, self.places = settings, Places()
        self.kinds, self.items = array("b"), array("q")
        self.driver, self.failures, self.segments, self.skipped = [], [], [], 0
        self.addresses, self.requested, self.sizes = array("q"), array("q"), array("q")
        self.birth, self.death, self.place, self.stream = array("q"), array("q"), array("q"), array("q")
        self.live = {}  # address -> number of the block

    def read_trace(self, trace: list) -> None:
        freed_by = "free_completed"  # a block that another stream still uses is not free when it is asked for
        if not any(isinstance(event, dict) and event.get("action") == freed_by for event in trace):
            freed_by = "free_requested"
        progress = Progress("looking", len(trace))
        for done, event in enumerate(trace):
            if not done % 50_000:
                progress.at(done)
            try:
                action, size = event["action"], event["size"]
                address = event["device_free" if action == "oom" else "addr"]
                if not (0 <= address < LIMIT and 0 <= size < LIMIT):
                    raise ValueError
                if action == "alloc":
                    stream = event.get("stream", 0)
                    self.alloc(address, size, event.get("frames"), stream if isinstance(stream, int) else 0)
                elif action == freed_by:
                    self.free(address, size)
                elif action in DRIVER:
                    self.event(DRIVER[action], len(self.driver))
                    self.driver.append((int(address), int(size)))
                elif action == "oom":
                    self.event(FAIL, len(self.failures))
                    self.failures.append((int(size), int(address), self.places.number(event.get("frames"))))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                if not (isinstance(event, dict) and event.get("action") == "snapshot"):
                    self.skipped += 1
        progress.close()

    def event(self, kind: int, item: int) -> None:
        self.kinds.append(kind)
        self.items.append(item)

    def alloc(self, address: int, size: int, frames, stream: int) -> None:
        address, size = int(address), int(size)
        if address in self.live and size:  # its free was not recorded
            self.free(address, size)
        self.live[address] = len(self.birth)
        self.event(ALLOC, self.block(address, size, self.settings.round_size(size), len(self.kinds), frames, stream))

    def free(self, address: int, size: int) -> None:
        if address not in self.live:  # it was there before the recording
            self.live[address] = self.block(int(address), int(size), self.settings.round_size(int(size)), -1, None, 0)
        number = self.live.pop(address)
        self.death[number] = len(self.kinds)
        self.event(FREE, number)

    def block(self, address, requested, size, birth, frames, stream) -> int:
        place = self.places.number(frames)  # first: where it raises, no column may be longer than the others
        self.addresses.append(address)
        self.requested.append(requested)
        self.sizes.append(size)
        self.birth.append(birth)
        self.death.append(LIMIT)
        self.place.append(place)
        self.stream.append(stream % LIMIT)
        return len(self.birth) - 1

    def read_segments(self, segments: list) -> None:
        for segment in segments:
            try:
                self.read_segment(segment)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.skipped += 1

    def read_segment(self, segment: dict) -> None:
        start, total = segment["address"], segment["total_size"]
        if not (0 <= start < LIMIT and 0 < total < LIMIT):
            raise ValueError
        blocks, position = [], int(start)
        for block in listed(segment.get("blocks")):
            size, state = block["size"], block["state"]
            if not 0 < size < LIMIT:
                raise ValueError
            in_use = isinstance(state, str) and state.startswith("active")
            blocks.append((position, int(size), not in_use, block))
            position += int(size)
        if position != start + total:
            raise ValueError
        for address, size, is_free, block in blocks:
            if is_free:
                continue
            if address not in self.live:
                requested, frames = details(block, size)
                stream = number(segment, "stream") or 0
                self.live[address] = self.block(address, requested, size, -1, frames, stream)
            self.sizes[self.live[address]] = size  # with the tail that was too small to split off
        is_small = segment.get("segment_type") == "small"
        self.segments.append(Segment(int(start), int(total), [block[:3] for block in blocks], is_small))

    def recording(self) -> Recording:
        columns = [numpy.array(column, dtype=numpy.int64) for column in (
            self.addresses, self.requested, self.sizes, self.birth, self.death, self.place, self.stream)]
        columns[4] = numpy.minimum(columns[4], len(self.kinds))
        return Recording(self.kinds, self.items, self.driver, self.failures, *columns, self.places.done(),
                         sorted(self.segments, key=lambda segment: segment.address), self.settings, self.skipped)


def listed(value) -> list:
    return value if isinstance(value, list | tuple) else []


def number(thing, key: str) -> int | None:
    """A whole number that `thing[key]` is, if it is one."""
    value = thing.get(key) if isinstance(thing, dict) else None
    return value if isinstance(value, int) and 0 <= value < LIMIT else None


def details(block: dict, size: int) -> tuple[int, list]:
    """Bytes asked for, and frames; snapshots before 2.1 had both in a history."""
    history = listed(block.get("history"))
    first = history[0] if history and isinstance(history[0], dict) else {}
    requested = number(block, "requested_size") or number(first, "real_size") or size
    return min(requested, size), block.get("frames", first.get("frames"))


def settings_of(data: dict, segments: list, trace: list) -> Settings:
    """The allocator's settings as recorded; the defaults where the file does not say."""
    said = data.get("allocator_settings")
    said = said if isinstance(said, dict) else {}
    steps = said.get("roundup_power2_divisions")
    steps = tuple(steps.values())[:INTERVALS] if isinstance(steps, dict) else ()
    wanted = {"expandable_segments": any(isinstance(segment, dict) and segment.get("is_expandable") is True
                                         for segment in segments)
              or any(isinstance(event, dict) and event.get("action") == "segment_map" for event in trace[:10_000]),
              "max_split_size": number(said, "max_split_size"),
              "garbage_collection_threshold": said.get("garbage_collection_threshold", 0.0),
              "roundup_power2_divisions": steps if len(steps) == INTERVALS and any(steps) else 0}
    for name in list(wanted):
        try:
            Settings(**{name: wanted[name]})
        except (TypeError, ValueError):
            del wanted[name]
    return Settings(**wanted)
