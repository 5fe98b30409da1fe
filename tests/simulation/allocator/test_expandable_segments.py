"""Expandable segments grow and shrink by pages, as PyTorch's do. The rules of both kinds: test_caching_allocator.py."""

import pytest

from helpers.simulation.allocator.caching_allocator import AllocationFailed
from helpers.units import MiB
from tests.simulation.allocator.allocators import check, make


def test_pages_are_mapped_as_needed_behind_the_last_ones():
    allocator = make(expandable=True)
    large = [allocator.malloc(size * MiB) for size in (3, 30, 8)]
    assert [block.address - large[0].address for block in large] == [0, 3 * MiB, 33 * MiB]
    assert (allocator.reserved, allocator.driver_calls) == (60 * MiB, 3)  # pages of 20 MiB
    small = [allocator.malloc(MiB) for _ in range(5)]
    assert (allocator.reserved, allocator.driver_calls) == (66 * MiB, 6)  # pages of 2 MiB
    assert len(allocator.segments()) == 2
    check(allocator, large + small)


def test_a_request_uses_the_free_end_of_what_is_mapped():
    allocator = make(expandable=True)
    allocator.malloc(30 * MiB)  # 10 MiB of the second page are free
    block = allocator.malloc(50 * MiB)
    assert (block.size, allocator.reserved) == (50 * MiB, 80 * MiB)


def test_an_expandable_block_gives_away_every_rest():
    allocator = make(expandable=True)
    first, second = allocator.malloc(20 * MiB - 512), allocator.malloc(5 * MiB)
    assert (first.size, second.address - first.address) == (20 * MiB - 512, 20 * MiB - 512)


def test_a_block_that_cannot_grow_is_used_first():
    allocator = make(expandable=True)
    hole, _ = allocator.malloc(10 * MiB), allocator.malloc(4 * MiB)
    allocator.free(hole)  # 10 MiB; at the end 6 MiB, which can grow
    assert allocator.malloc(5 * MiB).address == hole.address


def test_whole_free_pages_are_unmapped_and_filled_again():
    allocator = make(expandable=True)
    first, middle, last = allocator.malloc(5 * MiB), allocator.malloc(50 * MiB), allocator.malloc(5 * MiB)
    allocator.free(middle)  # of its 50 MiB only the second of three pages is free as a whole
    allocator.empty_cache()
    assert [(segment.size, len(segment.blocks)) for segment in allocator.segments()] == [(20 * MiB, 2), (20 * MiB, 2)]
    check(allocator, [first, last])
    again = allocator.malloc(50 * MiB)
    assert (again.address, allocator.reserved, allocator.driver_calls) == (middle.address, 60 * MiB, 4)
    check(allocator, [first, again, last])


def test_a_gap_is_filled_before_the_end_grows():
    allocator = make(expandable=True)
    first, second = allocator.malloc(40 * MiB), allocator.malloc(20 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    again = allocator.malloc(30 * MiB)
    assert (again.address, allocator.reserved) == (first.address, 60 * MiB)
    check(allocator, [again, second])


@pytest.mark.parametrize(("capacity", "fits"), [(80 * MiB, True), (79 * MiB, False)])
def test_unmapped_then_free_then_unmapped_serve_one_request(capacity, fits):
    allocator = make(capacity, expandable=True)
    first, second = allocator.malloc(20 * MiB), allocator.malloc(20 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    allocator.free(second)
    if fits:
        block = allocator.malloc(80 * MiB)
        assert (block.address, allocator.retries, allocator.driver_calls) == (first.address, 0, 5)
        check(allocator, [block])
    else:
        with pytest.raises(AllocationFailed):
            allocator.malloc(80 * MiB)
        assert allocator.reserved < capacity
        check(allocator)


def test_pages_of_a_failed_request_go_back_and_count_for_no_peak():
    allocator = make(100 * MiB, expandable=True)
    block = allocator.malloc(20 * MiB)
    with pytest.raises(AllocationFailed):
        allocator.malloc(100 * MiB)
    assert (allocator.reserved, allocator.peak_reserved) == (20 * MiB, 20 * MiB)
    assert allocator.driver_calls == 1 + 4 + 4  # one page is used, four were given and went back, twice
    check(allocator, [block])


def test_pages_of_the_other_pool_come_back_before_a_request_fails():
    allocator = make(22 * MiB, expandable=True)
    for block in [allocator.malloc(MiB) for _ in range(6)]:
        allocator.free(block)
    check(allocator, [allocator.malloc(20 * MiB)])
    assert (allocator.retries, allocator.reserved) == (1, 20 * MiB)


def test_a_second_segment_where_addresses_run_out():
    allocator = make(100 * MiB, expandable=True)  # 9/8 of it in whole pages: 120 MiB of addresses
    first, second = allocator.malloc(40 * MiB), allocator.malloc(40 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    third = allocator.malloc(60 * MiB)  # 40 MiB of addresses before `second`, 40 MiB behind
    assert third.address >= first.address + 120 * MiB
    check(allocator, [second, third])
    allocator.free(second)
    allocator.free(third)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert not allocator._heads  # the addresses went back, too
