"""Recorded requests replayed: as recorded they go where they went; each setting helps somewhere, hurts elsewhere."""

import os
import pathlib

import pytest

from helpers.snapshots.reading import read
from helpers.snapshots.snapshot import Snapshot
from helpers.units import MiB
from tests.simulation.allocator.replay import load
from tests.snapshots.files import of_orders, of_trace

TRACES = sorted(pathlib.Path(os.environ["TRACES"]).glob("*.json.gz")) if os.environ.get("TRACES") else []


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_real_recording_is_replayed_block_by_block(path):
    snapshot = Snapshot(read(of_trace(load(path))))
    agreement = snapshot.agreement
    assert agreement.blocks > 30 and agreement.segments > 8
    assert agreement.blocks_same == agreement.blocks and agreement.segments_same == agreement.segments
    assert agreement.peak == agreement.recorded_peak
    assert not snapshot.recording.skipped


@pytest.mark.skipif(not os.environ.get("TRACES"), reason="recorded traces: set TRACES to their folder")
def test_there_are_traces():
    assert len(TRACES) >= 6


@pytest.mark.parametrize("path", [path for path in TRACES if "train" in path.name], ids=lambda path: path.name)
def test_a_real_recording_fits_in_its_peak_and_not_in_less_than_its_tensors(path):
    snapshot = Snapshot(read(of_trace(load(path))))
    peak = int(snapshot.reserved.max())
    assert snapshot.replay(capacity=peak).fits
    short = snapshot.replay(capacity=int(snapshot.allocated.max()) - MiB)
    assert not short.fits and short.failed is not None and short.events < len(snapshot)
    assert "OUT OF MEMORY" in str(short)
    grown = snapshot.replay(expandable_segments=True)
    assert grown.fits and grown.peak_reserved <= peak + 40 * MiB


def test_a_recording_that_begins_late_is_replayed_from_what_was_there():
    data = of_trace(load(TRACES[0])) if TRACES else None
    if data is None:
        pytest.skip("recorded traces: set TRACES to their folder")
    data["device_traces"][0] = data["device_traces"][0][len(data["device_traces"][0]) // 2:]
    snapshot = Snapshot(read(data))
    assert snapshot.allocated[0] > 0 and (snapshot.recording.birth < 0).any()
    agreement = snapshot.agreement
    assert agreement.blocks_same == agreement.blocks


def test_expandable_segments_help_a_large_request_beside_a_small_tensor():
    snapshot = of_orders([600 * MiB, ("free", 0), 8 * MiB, 600 * MiB], 1000 * MiB)
    assert snapshot.failure.bytes == 600 * MiB and not snapshot.replay().fits
    assert snapshot.replay(expandable_segments=True).fits
    assert "this request fits" in str(snapshot.replay(expandable_segments=True))


def test_expandable_segments_hurt_where_a_page_is_larger_than_what_is_left():
    snapshot = of_orders([10 * MiB] * 3, 30 * MiB)
    assert snapshot.failure is None
    assert not snapshot.replay(expandable_segments=True, capacity=30 * MiB).fits


def test_max_split_size_helps_to_keep_small_tensors_out_of_large_segments():
    snapshot = of_orders([600 * MiB, ("free", 0), 8 * MiB, 600 * MiB], 1000 * MiB)
    assert snapshot.replay(max_split_size=100 * MiB).fits


def test_max_split_size_hurts_where_the_rest_of_a_large_block_was_needed():
    snapshot = of_orders([600 * MiB, ("free", 0), 590 * MiB, 9 * MiB], 600 * MiB)
    assert snapshot.failure is None and snapshot.replay(capacity=600 * MiB).fits
    assert not snapshot.replay(capacity=600 * MiB, max_split_size=100 * MiB).fits


def test_garbage_collection_helps_to_give_back_what_is_old_before_the_driver_refuses():
    orders = [200 * MiB, ("free", 0), 300 * MiB, ("free", 2), 400 * MiB, ("free", 4), 500 * MiB, ("free", 6)]
    snapshot = of_orders(orders, 1000 * MiB)
    plain = snapshot.replay(capacity=1000 * MiB)
    collected = snapshot.replay(capacity=1000 * MiB, garbage_collection_threshold=0.5)
    assert plain.retries == 1 and collected.retries == 0
    assert collected.fits and collected.peak_reserved <= plain.peak_reserved


def test_garbage_collection_hurts_where_the_old_is_asked_for_again():
    orders = []
    for _ in range(10):
        for size in (300, 400):
            orders += [size * MiB, 20 * MiB, ("free", len(orders)), ("free", len(orders) + 1)]
    snapshot = of_orders(orders, 1000 * MiB)
    plain = snapshot.replay(capacity=1000 * MiB)
    collected = snapshot.replay(capacity=1000 * MiB, garbage_collection_threshold=0.1)
    assert collected.fits and plain.fits
    assert collected.driver_calls > plain.driver_calls


def test_rounding_helps_where_sizes_grow_a_little_each_time():
    orders = []
    for size in range(50, 64):
        orders += [size * MiB, ("free", len(orders))]
    snapshot = of_orders(orders, 10_000 * MiB)
    plain, rounded = snapshot.replay(), snapshot.replay(roundup_power2_divisions=4)
    assert rounded.peak_reserved < plain.peak_reserved / 3
    assert rounded.driver_calls < plain.driver_calls


def test_rounding_hurts_where_sizes_stand_just_above_a_step():
    snapshot = of_orders([33 * MiB] * 10, 340 * MiB)
    assert snapshot.failure is None
    assert not snapshot.replay(capacity=340 * MiB, roundup_power2_divisions=4).fits


def test_recorded_settings_are_those_of_the_replay():
    for settings in ({"max_split_size": 100 * MiB}, {"expandable_segments": True}, {"roundup_power2_divisions": 4},
                     {"garbage_collection_threshold": 0.5}):
        orders = [600 * MiB, ("free", 0), 8 * MiB, 33 * MiB, ("free", 2), 590 * MiB]
        snapshot = of_orders(orders, 1000 * MiB, **settings)
        name, value = next(iter(settings.items()))
        recorded = getattr(snapshot.settings, name)
        assert recorded == value or set(recorded) == {value}
        agreement = snapshot.agreement
        assert agreement.blocks_same == agreement.blocks and agreement.peak == agreement.recorded_peak


def test_empty_cache_in_the_code_is_told_from_the_allocators_own():
    snapshot = of_orders([600 * MiB, ("free", 0), "empty", 8 * MiB, 600 * MiB], 1000 * MiB)
    assert snapshot.failure is None and snapshot.replay(capacity=1000 * MiB).fits
    retried = of_orders([600 * MiB, ("free", 0), 700 * MiB], 1000 * MiB)
    assert retried.replay(capacity=1000 * MiB).retries == 1


@pytest.mark.parametrize(("arguments", "sentence"), [
    ({"max_split_size": 1}, "at least 20971520"), ({"garbage_collection_threshold": 2}, "from 0 to 1"),
    ({"roundup_power2_divisions": 3}, "power of 2"), ({"expandable": True}, "no setting 'expandable'"),
    ({"capacity": "24"}, "number of bytes"), ({"expandable_segments": 1}, "True or False")])
def test_what_cannot_be_set_gets_a_sentence(arguments, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        of_orders([600 * MiB], 1000 * MiB).replay(**arguments)
