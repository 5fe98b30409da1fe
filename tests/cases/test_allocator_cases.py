"""What people ran into with the cache, as they reported it."""

import pytest

from helpers.simulation.allocator.caching_allocator import AllocationFailed
from helpers.units import MiB
from tests.simulation.allocator.allocators import check, make

ORDERS = {  # t: a tensor of 600 MiB, s: one of 8 MiB that stays, -t: t is freed; of 1000 MiB
    "small one into the hole": ["t", "-t", "s", "t"],
    "small one first": ["s", "t", "-t", "t"],
    "empty_cache before": ["t", "-t", "empty_cache", "s", "t"],
    "empty_cache after": ["t", "-t", "s", "empty_cache", "t"]}


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_a_long_lived_small_tensor_in_the_block_of_a_large_one(order, expandable):
    # pytorch/pytorch issue 35901
    allocator, held, fits = make(1000 * MiB, expandable), {}, True
    for step in ORDERS[order]:
        if step == "empty_cache":
            allocator.empty_cache()
        elif step.startswith("-"):
            allocator.free(held.pop(step[1:]))
        else:
            try:
                held[step] = allocator.malloc({"t": 600, "s": 8}[step] * MiB)
            except AllocationFailed:
                fits = False
    check(allocator, held.values())
    verdict = fits, allocator.allocated // MiB, allocator.reserved // MiB
    if expandable or order in ("small one first", "empty_cache before"):
        assert verdict == (True, 608, 620)
    else:
        assert verdict == (False, 8, 600)


def test_empty_cache_in_every_step_costs_driver_calls_and_saves_no_peak():
    # discuss.pytorch.org, about-torch-cuda-empty-cache
    def steps(empties: bool):
        allocator, calls = make(4000 * MiB), []
        for _ in range(10):
            allocator.malloc(30 * MiB)
        for _ in range(5):
            before = allocator.driver_calls
            for block in [allocator.malloc(40 * MiB + 3) for _ in range(20)]:
                allocator.free(block)
            if empties:
                allocator.empty_cache()
            calls.append(allocator.driver_calls - before)
        return calls, allocator.peak_allocated // MiB, allocator.peak_reserved // MiB, allocator.reserved // MiB

    assert steps(empties=False) == ([20, 0, 0, 0, 0], 1100, 1140, 1140)
    assert steps(empties=True) == ([20, 20, 20, 20, 20], 1100, 1140, 300)


@pytest.mark.parametrize("empties", [False, True])
def test_empty_cache_does_not_cure_a_real_shortage(empties):
    allocator = make(800 * MiB)
    with pytest.raises(AllocationFailed):
        for _ in range(9):
            if empties:
                allocator.empty_cache()
            allocator.malloc(100 * MiB)
    assert (allocator.allocated, allocator.retries) == (800 * MiB, 1)
