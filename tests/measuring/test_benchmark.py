"""The simulated card is fast enough to teach with, and its cost does not grow with the batch."""

import pytest

from tests.measuring.benchmark import measure


@pytest.mark.timing
def test_it_follows_two_steps_faster_than_memtracker():
    best = measure()
    assert best["MemTracker, batch 4"] > 2.5 * best["card, batch 4"]
    assert best["card, batch 64"] < 1.5 * best["card, batch 4"]
