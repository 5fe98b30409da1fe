"""The allocator's other settings do what c10/core/AllocatorConfig.cpp and the allocator say."""

import pytest

from helpers.simulation.allocator.caching_allocator import CachingAllocator, SimulatedDriver
from helpers.simulation.allocator.settings import Settings
from helpers.units import GiB, MiB
from tests.simulation.allocator.allocators import check


def make(capacity=GiB, **settings) -> CachingAllocator:
    return CachingAllocator(SimulatedDriver(capacity), settings=Settings(**settings))


@pytest.mark.parametrize(("divisions", "asked", "rounded"), [
    (0, 1200 * MiB + 1, 1200 * MiB + 512), (4, 1200 * MiB, 1280 * MiB), (4, 1280 * MiB, 1280 * MiB),
    (4, 1281 * MiB, 1536 * MiB), (1, 1200, 1536), (4, 2048, 2048), (4, 2049, 2560), (8, 9 * MiB, 9 * MiB), (4, 1, 512),
    ((0,) * 5 + (4,) * 11, 33 * MiB, 40 * MiB), ((0,) * 6 + (4,) * 10, 33 * MiB, 33 * MiB),
    ((4,) + (0,) * 15, 600 * 1024, 640 * 1024)])
def test_rounding_to_steps_between_powers_of_two(divisions, asked, rounded):
    assert Settings(roundup_power2_divisions=divisions).round_size(asked) == rounded


def test_a_block_above_the_limit_is_neither_split_nor_given_to_less():
    allocator = make(max_split_size=100 * MiB)
    large = allocator.malloc(200 * MiB)
    allocator.free(large)
    small = allocator.malloc(50 * MiB)
    assert allocator.reserved == 250 * MiB  # not from the 200
    middling = allocator.malloc(150 * MiB)
    assert allocator.reserved == 400 * MiB  # 200 is 20 MiB or more too large
    near = allocator.malloc(181 * MiB)
    assert near.size == 200 * MiB and allocator.reserved == 400 * MiB  # whole, with what is too much
    check(allocator, [small, middling, near])


def test_before_the_whole_cache_goes_one_large_block_goes():
    allocator = make(capacity=500 * MiB, max_split_size=100 * MiB)
    blocks = [allocator.malloc(size * MiB) for size in (40, 120, 200)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(320 * MiB)  # neither 200 nor 120 is enough, and one after the other they are
    assert allocator.retries == 0 and allocator.reserved == 360 * MiB


def test_what_is_old_goes_first():
    allocator = make(capacity=1000 * MiB, garbage_collection_threshold=0.5)
    old, young = allocator.malloc(200 * MiB), allocator.malloc(320 * MiB)
    allocator.free(old)
    for _ in range(5):
        allocator.free(allocator.malloc(2 * MiB))  # the first takes from the 200, and gives it back
    allocator.free(young)
    allocator.malloc(400 * MiB)
    assert allocator.retries == 0 and allocator.reserved <= 900 * MiB


def test_below_the_threshold_nothing_goes():
    plain, collecting = make(), make(garbage_collection_threshold=0.9)
    for allocator in (plain, collecting):
        for size in (100, 200, 300):
            allocator.free(allocator.malloc(size * MiB))
    assert plain.reserved == collecting.reserved and plain.driver_calls == collecting.driver_calls


def test_settings_are_written_as_the_environment_variable_has_them():
    settings = Settings(True, 128 * MiB, 0.8, 4)
    assert str(settings) == ("expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8,"
                             "roundup_power2_divisions:4")
    assert str(Settings()) == "" and "[1:0,2:4" in str(Settings(roundup_power2_divisions=(0,) + (4,) * 15))
