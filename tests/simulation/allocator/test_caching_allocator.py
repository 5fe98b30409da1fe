"""The allocator model keeps each of PyTorch's rules."""

import itertools
import random

import pytest

from helpers.simulation.allocator.caching_allocator import AllocationFailed, CachingAllocator, SimulatedDriver
from helpers.units import MiB
from tests.simulation.allocator.allocators import UNLIMITED, check, make

# Sizes


def test_allocated_and_reserved_after_each_request():
    allocator, seen = make(), []
    for nbytes in (1, 513, MiB, MiB + 1, 10 * MiB, 25 * MiB + 5):
        allocator.malloc(nbytes)
        seen.append((allocator.allocated, allocator.reserved // MiB))
    assert seen == [(512, 2), (1536, 2), (1050112, 2), (2099200, 22), (12584960, 22), (39847936, 48)]


@pytest.mark.parametrize(("nbytes", "block", "segment"), [
    (1, 512, 2 * MiB), (512, 512, 2 * MiB), (513, 1024, 2 * MiB), (MiB, MiB, 2 * MiB),
    (MiB + 1, MiB + 512, 20 * MiB), (10 * MiB - 512, 10 * MiB - 512, 20 * MiB), (10 * MiB - 1, 10 * MiB, 10 * MiB),
    (10 * MiB, 10 * MiB, 10 * MiB), (10 * MiB + 1, 10 * MiB + 512, 12 * MiB), (30 * MiB + 1, 30 * MiB + 512, 32 * MiB)])
def test_size_of_a_block_and_of_its_segment(nbytes, block, segment):
    allocator = make()
    assert allocator.malloc(nbytes).size == block
    assert [piece.size for piece in allocator.segments()] == [segment] and allocator.driver_calls == 1


def test_no_bytes_take_no_memory():
    allocator = make()
    block = allocator.malloc(0)
    assert (block.address, block.size, allocator.reserved, allocator.segments()) == (0, 0, 0, [])
    allocator.free(block)
    check(allocator)


@pytest.mark.parametrize("nonsense", [-1, 1.5, "512", None])
def test_nonsense_is_refused(nonsense):
    with pytest.raises(ValueError, match="number of bytes"):
        make().malloc(nonsense)


@pytest.mark.parametrize("expandable", [False, True])
def test_freeing_twice_is_refused(expandable):
    allocator = make(expandable=expandable)
    blocks = [allocator.malloc(512) for _ in range(2)]  # the second goes into the first
    for block in blocks:
        allocator.free(block)
    for block in blocks:
        with pytest.raises(ValueError, match="free already"):
            allocator.free(block)
    allocator.empty_cache()
    for block in blocks:
        with pytest.raises(ValueError, match="free already"):
            allocator.free(block)
    check(allocator)


# Which block


def test_the_smallest_that_fits_then_the_lowest_address():
    class Downwards(SimulatedDriver):
        def malloc(self, nbytes):
            address = super().malloc(nbytes)
            return 2**41 - address - nbytes  # a later segment lies lower, as it often does on a real card

        def free(self, address):
            raise AssertionError("nothing goes back here")

    allocator = CachingAllocator(Downwards(UNLIMITED))
    blocks = [allocator.malloc(size * MiB) for size in (40, 30, 50, 30)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        allocator.free(block)
    assert [allocator.malloc(size * MiB).address for size in (30, 30, 30, 30)] == [
        addresses[3], addresses[1], addresses[0], addresses[2]]
    assert allocator.driver_calls == 4


def test_a_small_request_does_not_go_to_the_large_pool_nor_the_reverse():
    allocator = make()
    allocator.free(allocator.malloc(20 * MiB))
    small = allocator.malloc(MiB)
    assert allocator.reserved == 22 * MiB
    allocator.free(small)
    allocator.malloc(20 * MiB)
    allocator.malloc(MiB + 512)  # 2 MiB are free in the small pool
    assert allocator.reserved == 42 * MiB


# Splitting and merging


def test_a_large_block_keeps_a_rest_of_one_mebibyte():
    allocator = make()
    block = allocator.malloc(11 * MiB)
    assert (block.size, allocator.allocated) == (12 * MiB, 12 * MiB)
    allocator.free(block)
    block = allocator.malloc(11 * MiB - 512)
    assert (block.size, allocator.allocated) == (11 * MiB - 512, 11 * MiB - 512)


def test_a_small_block_gives_away_every_rest():
    allocator = make()
    first, second = allocator.malloc(MiB), allocator.malloc(MiB - 512)
    assert (second.address, second.size) == (first.address + MiB, MiB - 512)
    assert allocator.malloc(1).address == second.address + second.size and allocator.driver_calls == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_free_neighbours_become_one_block(order):
    allocator = make()
    blocks = [allocator.malloc(5 * MiB) for _ in range(4)]
    live = list(blocks)
    for index in order:
        allocator.free(blocks[index])
        live.remove(blocks[index])
        check(allocator, live)
    assert [len(segment.blocks) for segment in allocator.segments()] == [1]
    assert allocator.malloc(20 * MiB).address == blocks[0].address and allocator.driver_calls == 1


def test_segments_are_never_merged():
    allocator = make()
    for block in [allocator.malloc(10 * MiB), allocator.malloc(10 * MiB)]:
        allocator.free(block)
    first, second = allocator.segments()
    assert first.address + first.size == second.address
    allocator.malloc(20 * MiB)
    assert allocator.reserved == 40 * MiB


# Giving back


def test_free_gives_nothing_back_and_empty_cache_gives_whole_segments():
    allocator = make()
    whole, part, rest = allocator.malloc(30 * MiB), allocator.malloc(5 * MiB), allocator.malloc(6 * MiB)
    small = allocator.malloc(1)
    for block in (whole, rest, small):
        allocator.free(block)
    assert (allocator.allocated, allocator.reserved) == (5 * MiB, 52 * MiB)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved, allocator.retries) == (5 * MiB, 20 * MiB, 0)
    check(allocator, [part])


def test_the_cache_is_given_back_before_a_request_fails():
    allocator = make(100 * MiB)
    kept, small = allocator.malloc(5 * MiB), allocator.malloc(1)
    for block in [allocator.malloc(40 * MiB), allocator.malloc(30 * MiB), small]:
        allocator.free(block)
    block = allocator.malloc(80 * MiB)  # 8 MiB are left, 72 MiB lie in the cache, in no piece large enough
    assert (allocator.retries, allocator.reserved, allocator.peak_reserved) == (1, 100 * MiB, 100 * MiB)
    check(allocator, [kept, block])


def test_a_cached_block_is_used_before_the_driver_is_asked():
    allocator = make(100 * MiB)
    allocator.free(allocator.malloc(60 * MiB))
    allocator.malloc(50 * MiB)
    assert (allocator.driver_calls, allocator.retries, allocator.reserved) == (1, 0, 60 * MiB)


@pytest.mark.parametrize(("expandable", "requested", "segment"), [
    (False, 2 * MiB + 1, 20 * MiB), (True, 25 * MiB + 1, 26 * MiB)])
def test_failure_names_the_request_and_the_segment(expandable, requested, segment):
    allocator = make(100 * MiB, expandable)
    block = allocator.malloc(81 * MiB)
    with pytest.raises(AllocationFailed) as failure:
        allocator.malloc(requested)
    assert isinstance(failure.value, MemoryError)
    assert (failure.value.requested, failure.value.segment) == (requested, segment)
    assert (allocator.allocated, allocator.retries) == (block.size, 1)
    check(allocator, [block])
    allocator.free(block)
    check(allocator, [allocator.malloc(100 * MiB)])  # as good as new


def test_peaks_and_their_reset():
    allocator = make()
    block = allocator.malloc(30 * MiB)
    allocator.free(block)
    allocator.empty_cache()
    allocator.malloc(1)
    assert (allocator.peak_allocated, allocator.peak_reserved) == (30 * MiB, 30 * MiB)
    allocator.reset_peaks()
    assert (allocator.peak_allocated, allocator.peak_reserved) == (512, 2 * MiB)


# Anything


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold_under_a_random_workload(seed, expandable):
    draw = random.Random(seed)
    allocator, live, failures = make(draw.choice([203, 300, 611]) * MiB, expandable), [], 0
    for _ in range(600):
        if live and draw.random() < 0.45:
            allocator.free(live.pop(draw.randrange(len(live))))
        elif draw.random() < 0.02:
            allocator.empty_cache()
        else:
            largest = draw.choice([2000, MiB, 3 * MiB, 12 * MiB, 90 * MiB])
            try:
                live.append(allocator.malloc(draw.randrange(largest)))
            except AllocationFailed:
                failures += 1
        check(allocator, live)
    assert failures and allocator.retries > failures / 2
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved, allocator.segments()) == (0, 0, [])
    # A request that failed leaves addresses without memory behind, as in PyTorch: one block, nothing mapped.
    assert all(not head.is_mapped and head.next is None for head in allocator._heads.values())
