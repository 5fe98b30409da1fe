"""Replay what a real CUDA caching allocator did through the model, and list every difference.

    TRACES=folder python tests/simulation/allocator/replay.py
"""

import gzip
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from helpers.simulation.allocator.caching_allocator import CachingAllocator


class ReplayDriver:
    """Hands out the recorded addresses. answers: (bytes, address or None) for the requests expected next."""

    def __init__(self):
        self.answers, self.returned, self.differences = [], set(), []

    def malloc(self, nbytes: int) -> int | None:
        size, address = self.answers.pop(0) if self.answers else (None, None)
        if size != nbytes:
            self.differences.append(f"asked for a segment of {nbytes} bytes, recorded: {size or 'none'}")
        return address

    def free(self, address: int) -> None:
        self.returned.add(address)


def replay(trace: dict) -> tuple[CachingAllocator, list[str], dict[str, int]]:
    """The allocator after the trace, every difference in words, and how many events were compared, by kind."""
    driver = ReplayDriver()
    allocator = CachingAllocator(driver)
    blocks, starts = _restore(trace, driver, allocator)
    compared = {"segments": 0, "blocks": 0, "returned": 0}
    asked, returned = [], set()  # recorded for the `alloc` that comes next

    for event in trace["events"]:
        if event[0] == "segment_free":
            returned.add(starts[event[1]])
        elif event[0] == "segment_alloc":
            starts[event[1]] = event[3]
            asked.append((event[2], event[3]))
        elif event[0] == "free":
            allocator.free(blocks.pop(event[1]))
        else:
            # Segments returned within malloc: the driver refused first.
            driver.answers = [(asked[0][0], None), *asked] if returned else list(asked)
            driver.returned = set()
            block = blocks[event[1]] = allocator.malloc(event[2])
            right = starts[event[3]] + event[4]
            if block.address != right:
                driver.differences.append(f"block {event[1]} is at {block.address}, recorded: {right}")
            if driver.answers:
                driver.differences.append(f"block {event[1]}: no new segment, recorded: {driver.answers}")
            if driver.returned != returned:
                driver.differences.append(f"block {event[1]}: other segments returned than recorded")
            compared["blocks"] += 1
            compared["segments"] += len(asked)
            compared["returned"] += len(returned)
            asked, returned = [], set()
    return allocator, driver.differences, compared


def _restore(trace, driver, allocator):
    """Bring the allocator to where the trace begins: fill each segment from its start, then free what was not live."""
    blocks, starts = {}, {}
    for segment, size, address in trace["segments"]:
        starts[segment], driver.answers = address, [(size, address)]
        fillers, position = [], 0
        live = sorted((offset, number, bytes_) for number, bytes_, where, offset in trace["live"] if where == segment)
        for offset, number, bytes_ in [*live, (size, None, 0)]:
            while position < offset:
                # At most half of a small segment: a larger request would go to the other pool.
                fillers.append(allocator.malloc(min(offset - position, 2**20 if size == 2**21 else size)))
                position += fillers[-1].size
            if number is not None:
                blocks[number] = allocator.malloc(bytes_)
                position += blocks[number].size
        for filler in fillers:
            allocator.free(filler)
    for number, _, segment, offset in trace["live"]:
        if blocks[number].address != starts[segment] + offset:
            driver.differences.append(f"block {number} could not be restored")
    return blocks, starts


def load(path: pathlib.Path) -> dict:
    with gzip.open(path) as file:
        return json.load(file)


if __name__ == "__main__":
    for path in sorted(pathlib.Path(os.environ["TRACES"]).glob("*.json.gz")):
        allocator, differences, compared = replay(load(path))
        print(path.name, compared, f"{len(differences)} differences", *differences[:5], sep="\n    ")
