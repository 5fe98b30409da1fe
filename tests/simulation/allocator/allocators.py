"""An allocator on a card of a given size, and what must hold for it after every call."""

from helpers.simulation.allocator.caching_allocator import CachingAllocator, SimulatedDriver

UNLIMITED = 2**40


def make(capacity=UNLIMITED, expandable=False) -> CachingAllocator:
    return CachingAllocator(SimulatedDriver(capacity), expandable_segments=expandable)


def check(allocator: CachingAllocator, live=()) -> None:
    """What holds after every call: blocks tile the segments, free neighbours are merged, the counters are sums."""
    used = {}
    for segment in allocator.segments():
        position, previous_is_free = segment.address, False
        for address, size, is_free in segment.blocks:
            assert address == position and size > 0 and size % 512 == 0
            assert not (is_free and previous_is_free)
            position, previous_is_free = address + size, is_free
            if not is_free:
                used[address] = size
        assert position == segment.address + segment.size
    assert used == {block.address: block.size for block in live if block.size}
    assert allocator.allocated == sum(used.values()) <= allocator.peak_allocated
    assert allocator.reserved == sum(segment.size for segment in allocator.segments()) <= allocator.peak_reserved
    assert allocator.reserved == allocator.driver.used <= allocator.driver.capacity
