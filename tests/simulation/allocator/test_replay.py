"""The allocator model does to the byte what real CUDA allocators did."""

import os
import pathlib

import pytest

from helpers.units import MiB
from tests.simulation.allocator.replay import load, replay

TRACES = sorted(pathlib.Path(os.environ["TRACES"]).glob("*.json.gz")) if os.environ.get("TRACES") else []


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_replays_a_recorded_trace(path):
    allocator, differences, compared = replay(load(path))
    assert not differences
    assert compared["blocks"] > 30 and compared["segments"] > 8
    assert compared["returned"] == (17 if path.name.startswith("retry_after_free") else 0)
    assert allocator.retries == (compared["returned"] > 0)


@pytest.mark.skipif(not os.environ.get("TRACES"), reason="recorded traces: set TRACES to their folder")
def test_there_are_traces():
    assert len(TRACES) >= 6


def test_a_replay_sees_a_wrong_address_and_a_wrong_segment():
    def trace(size, offset):
        events = [["segment_alloc", 0, size, 0], ["alloc", 0, 512, 0, 0], ["alloc", 1, 512, 0, offset]]
        return {"segments": [], "live": [], "events": events}

    assert replay(trace(2 * MiB, 512))[1] == []
    assert len(replay(trace(2 * MiB, 1024))[1]) == 1
    assert len(replay(trace(20 * MiB, 512))[1]) == 1
