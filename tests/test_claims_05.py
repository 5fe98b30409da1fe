"""What notebook 05 says about accumulation. Its stored outputs are compared with a new run by nbval."""

import re

import pytest

from helpers import FusionConfig, GiB, open_card, parameter_count
from tests.notebook_cells import run_cells, stored_text

NAME = "05_gradient_accumulation"
GRADIENTS = 4 * parameter_count(FusionConfig())


@pytest.fixture(scope="module")
def cells():
    return run_cells(NAME, "imports", "training", "one-backward-run")


@pytest.fixture(scope="module")
def card():
    return open_card(kind="simulated")


@pytest.fixture(scope="module")
def batch_2(card, cells):
    return card.run(cells["training"](), 2)


@pytest.fixture(scope="module")
def two_by_two(card, cells):
    return card.run(cells["training"](2), 4)


def test_the_peak_is_a_set_of_gradients_above_the_micro_batch(batch_2, two_by_two):
    assert two_by_two.peak_allocated == pytest.approx(16.5 * GiB, rel=0.02)
    more = two_by_two.peak_allocated - batch_2.peak_allocated
    assert 0.9 * GRADIENTS < more < GRADIENTS  # batch 2 holds the first few at its own peak
    assert two_by_two.roles_at_peak["activations"] == batch_2.roles_at_peak["activations"]
    assert two_by_two.roles_at_peak["gradients"] == pytest.approx(GRADIENTS, rel=0.01)


@pytest.mark.parametrize("micro_steps", [4, 8])
def test_more_parts_cost_no_more(card, cells, two_by_two, micro_steps):
    assert card.run(cells["training"](micro_steps), 2 * micro_steps).peak_allocated == two_by_two.peak_allocated


def test_gradients_set_to_zero_cost_as_much(card, cells, two_by_two):
    kept = card.run(cells["training"](1, set_to_none=False), 2)
    assert kept.peak_allocated == pytest.approx(two_by_two.peak_allocated, rel=0.001)


def test_one_backward_at_the_end_keeps_every_graph(card, cells):
    assert not card.run(cells["train_one_backward"], 4).fits
    larger = open_card(kind="simulated", capacity=40 * GiB)
    whole = larger.run(cells["training"](), 4)
    assert larger.run(cells["train_one_backward"], 4).peak_allocated == pytest.approx(whole.peak_allocated, rel=0.02)


def test_time_and_work(batch_2, two_by_two):
    assert two_by_two.flops == 2 * batch_2.flops
    assert 1.9 < two_by_two.estimated_seconds / batch_2.estimated_seconds < 2


@pytest.mark.parametrize("cell", ["gradients", "last-window-right", "tokens-run"])
def test_weighed_by_its_share_a_part_is_right(cell):
    assert "True" in stored_text(NAME, cell) and stored_text(NAME, cell).count("False") == (cell == "gradients")


def test_loss_by_steps_is_wrong_for_unequal_parts():
    assert "0.50 of what it should be" in stored_text(NAME, "last-window-run")
    off = list(map(float, re.findall(r"difference ([\d.]+)", stored_text(NAME, "tokens-run"))))
    assert off[0] > 0.02 and off[1] > 0.5


def test_clipping_and_unscaling_belong_after_the_last_part():
    once, each = re.findall(r"\[([\d., ]+)\]", stored_text(NAME, "clip-run"))
    assert once == "0.71, 0.71" and each == "0.45, 0.89"
    assert "unscale_() has already been called" in stored_text(NAME, "unscale-twice")


def test_batchnorm_sees_the_micro_batch():
    assert stored_text(NAME, "batchnorm").splitlines() == [
        "BatchNorm1d over 2 x 4 as over 8: False", "LayerNorm over 2 x 4 as over 8: True"]


def test_the_solution_trains_batch_12():
    assert stored_text(NAME, "solution-loop").startswith("Right: batch 12")


def test_the_exercise_sees_steps_in_every_part_and_missing_documents(cells, capsys):
    names = run_cells(NAME, "imports", "training", "guess", "measure-runs", "exercise-loop")
    train, check = names["training"], names["check_12"]
    check(train(6))
    check(lambda device, size: [train()(device, 2) for _ in range(2)])
    check(lambda device, size: train(2)(device, 4))
    right, steps, documents = capsys.readouterr().out.splitlines()[-3:]
    assert right.startswith("Right") and "4 optimizer steps" in steps and "computes 8 documents" in documents
