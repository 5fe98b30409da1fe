"""How far the project's allocator, with the recorded settings, does what the recorded one did."""

import dataclasses

from helpers.simulation.allocator.caching_allocator import AllocationFailed, SimulatedDriver
from helpers.snapshots.places_in_memory import segments_at
from helpers.snapshots.reading import ALLOC, FREE, GIVE, TAKE
from helpers.snapshots.replaying import NO_LIMIT, Allocators
from helpers.units import GiB


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far the model did what was recorded. blocks: requests, and how many got the recorded address; segments: taken
    from the driver, and how many when and as large as recorded; not counted with expandable segments. peak,
    recorded_peak: bytes reserved."""

    blocks: int
    blocks_same: int
    segments: int
    segments_same: int
    peak: int
    recorded_peak: int

    def __str__(self) -> str:
        segments = f"{self.segments_same} of {self.segments} segments as recorded, " if self.segments else ""
        return (f"{self.blocks_same} of {self.blocks} requests where they were recorded, {segments}peak "
                f"{self.peak / GiB:.2f} GiB reserved (recorded {self.recorded_peak / GiB:.2f})")


class RecordedDriver:
    """Answers as the recorded one did: with the recorded addresses, and a refusal before segments were given back."""

    def __init__(self, capacity: int):
        self.capacity, self.answers, self.to_return, self.same, self.asked = capacity, [], set(), 0, 0
        self.spare = 2**61

    def malloc(self, nbytes: int) -> int | None:
        if self.to_return:
            return None
        self.asked += 1
        if self.answers and self.answers[0][1] == nbytes:
            self.same += 1
            return self.answers.pop(0)[0]
        self.spare += nbytes  # not as recorded: an address that nobody else has
        return self.spare - nbytes

    def free(self, address: int) -> None:
        self.to_return.discard(address)


def compare(snapshot) -> Agreement:
    """Replay with the recorded settings and addresses. With expandable segments, whose pages the model lays elsewhere,
    a block counts as the same where it is as far from the last one of its pool as it was."""
    recording, settings = snapshot.recording, snapshot.settings
    grows, streams = settings.expandable_segments, recording.stream.tolist()
    partly = settings.garbage_collection_threshold or settings.max_split_size
    driver = SimulatedDriver(NO_LIMIT) if grows else RecordedDriver(snapshot.capacity or NO_LIMIT)
    allocators, blocks = Allocators(driver, settings), {}
    restore(snapshot, allocators, driver, blocks)
    driver.same = driver.asked = 0
    addresses, requested = recording.addresses.tolist(), recording.requested.tolist()
    asked, returned, shifts, same, count, segments = [], set(), {}, 0, 0, 0
    for kind, item in zip(recording.kinds, recording.items, strict=True):
        if kind == TAKE:
            asked.append(recording.driver[item])
            segments += 1
        elif kind == GIVE:
            returned.add(recording.driver[item][0])
        elif kind == FREE:
            if returned:
                allocators.empty_cache()
                asked, returned = [], set()
            if item in blocks:
                allocators.of(streams[item]).free(blocks.pop(item))
        elif kind == ALLOC:
            if returned and not partly:
                allocators.empty_cache()
            driver.answers, driver.to_return = asked, set(returned) if partly else set()
            try:
                block = blocks[item] = allocators.malloc(requested[item], streams[item])
            except AllocationFailed:
                continue
            shift = addresses[item] - block.address
            key = (streams[item], block.pool is not None and block.pool.is_small) if grows else None
            same += shift == (shifts.get(key, shift) if grows else 0)
            shifts[key] = shift
            count, asked, returned = count + 1, [], set()
    segments, alike = (0, 0) if grows else (segments, driver.same)
    return Agreement(count, same, segments, alike, allocators.peak_reserved, int(snapshot.reserved.max()))


def restore(snapshot, allocators: Allocators, driver, blocks: dict) -> None:
    """Bring the allocators to where the recording begins: fill each segment from its start, then free what was not in
    use. On the stream of what is live there."""
    recording = snapshot.recording
    at_start = {recording.addresses[block]: block for block in (recording.birth < 0).nonzero()[0].tolist()}
    if not at_start and not snapshot.reserved[0]:
        return
    fillers = []
    for segment in segments_at(recording, 0):
        driver.answers = [(segment.address, segment.size)]
        most = 2**20 if segment.is_small else segment.size
        numbers = [at_start[address] for address, *_ in segment.blocks if address in at_start]
        stream = int(recording.stream[numbers[0]]) if numbers else 0
        allocators.of(stream).free(allocators.malloc(most, stream))  # the whole segment, to be cut up
        position, end = segment.address, segment.address + segment.size
        for address, *_ in [*segment.blocks, (end, 0, True)]:
            number = at_start.get(address)
            if number is None and address != end:
                continue
            while position < address:  # a tail too small to split off is part of the block before it
                fillers.append((stream, allocators.malloc(min(address - position, most), stream)))
                position += fillers[-1][1].size
            if address != end:
                blocks[number] = allocators.malloc(int(recording.requested[number]), stream)
                position += blocks[number].size
    for stream, block in fillers:
        allocators.of(stream).free(block)
    allocators.peak_reserved = allocators.sum("reserved")
