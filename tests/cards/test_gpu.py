"""On a real CUDA GPU: the story holds, and the simulated card predicts it. Skipped where there is no GPU.

Run with `make gpu`. The simulated card here has the capacity, context and compute capability of the real one.
"""

import dataclasses

import pytest
import torch

from helpers import open_card
from helpers.cards.catalogue import CARDS
from helpers.cards.simulated_card import SimulatedCard
from tests.cuda_dispatch.rungs import RUNGS, training_function

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def card():
    return open_card("RTX 3090", kind="cuda")


@pytest.fixture(scope="module")
def twin(card):
    """A simulated card that is this GPU, with all the memory it needs."""
    spec = dataclasses.replace(CARDS["RTX 3090"], compute_capability=torch.cuda.get_device_capability())
    return SimulatedCard(spec, capacity=1 << 40)


def test_batch_2_fits_and_batch_4_does_not(card):
    assert card.run(training_function(), 2).fits
    failed = card.run(training_function(), 4)
    assert not failed.fits and "allowed" in failed.error and failed.left_behind == 0
    assert card.run(training_function(), 2).fits


@pytest.mark.parametrize("name", RUNGS)
def test_the_simulated_peak_is_the_measured_one(card, twin, name):
    batch_size = 2 if name == "baseline" else 4  # batch 4 of the baseline does not fit under the cap
    train = training_function(**RUNGS[name])
    measured, simulated = card.run(train, batch_size), twin.run(train, batch_size)
    assert measured.fits
    assert simulated.peak_allocated == pytest.approx(measured.peak_allocated, rel=0.001)
    assert simulated.peak_reserved == pytest.approx(measured.peak_reserved, rel=0.01)
    assert measured.seconds > 0


def test_a_cap_is_lifted_when_the_card_is_closed(card):
    card.close()
    assert torch.zeros(1, device="cuda").item() == 0
