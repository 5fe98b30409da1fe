"""Where everything lay at one moment of a recording: segments, and the used and free pieces in them."""

import numpy

from helpers.simulation.allocator.caching_allocator import Segment
from helpers.snapshots.reading import GIVE, TAKE, Recording


def segments_at(recording: Recording, after: int) -> list[Segment]:
    """The segments after so many events: those of the file, gone back from its end.

    The file's own blocks where nothing happened in between. Before, a block counts with its request rounded up, so that
    a tail that was too small to split off looks free.
    """
    changes = [kind for kind in recording.kinds[after:] if kind <= GIVE]
    if not changes:
        return recording.segments
    ranges = {segment.address: segment.size for segment in recording.segments}
    small = {segment.address: segment.is_small for segment in recording.segments}
    for event in range(len(recording.kinds) - 1, after - 1, -1):
        if recording.kinds[event] == TAKE:
            take_out(ranges, *recording.driver[recording.items[event]])
        elif recording.kinds[event] == GIVE:
            address, size = recording.driver[recording.items[event]]
            ranges[address] = size
    if recording.settings.expandable_segments:
        ranges = joined(ranges)
    live = numpy.flatnonzero((recording.birth < after) & (recording.death >= after))
    live = live[numpy.argsort(recording.addresses[live], kind="stable")]
    addresses, sizes = recording.addresses[live].tolist(), recording.sizes[live].tolist()
    found, index = [], 0
    for start, size in sorted(ranges.items()):
        blocks, position = [], start
        while index < len(addresses) and addresses[index] < start:
            index += 1
        while index < len(addresses) and addresses[index] < start + size:
            address, used = addresses[index], min(sizes[index], start + size - addresses[index])
            if address > position:
                blocks.append((position, address - position, True))
            if address >= position and used > 0:
                blocks.append((address, used, False))
                position = address + used
            index += 1
        if position < start + size:
            blocks.append((position, start + size - position, True))
        found.append(Segment(start, size, blocks, small.get(start, size == 2 * 2**20)))
    return found


def take_out(ranges: dict[int, int], address: int, size: int) -> None:
    """Take a range out of the one that holds it: the same one, or with expandable segments a larger."""
    if ranges.get(address) == size:
        del ranges[address]
        return
    for start, length in ranges.items():
        if start <= address and address + size <= start + length:
            del ranges[start]
            if address > start:
                ranges[start] = address - start
            if address + size < start + length:
                ranges[address + size] = start + length - address - size
            return


def joined(ranges: dict[int, int]) -> dict[int, int]:
    """Ranges that touch made one."""
    found = {}
    last = None
    for start, size in sorted(ranges.items()):
        if last is not None and last + found[last] == start:
            found[last] += size
        else:
            found[start], last = size, start
    return found
