"""What notebook 05 says about accumulation. Its stored outputs are compared with a new run by nbval."""

import re

import pytest
import torch

from helpers import FusionConfig, GiB, open_card, parameter_count
from tests.notebooks.notebook_cells import run_cells, stored_text

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


def forward_end(run):
    timeline = run.timeline
    return max(size for phase, size in zip(timeline.phase, timeline.allocated, strict=True) if phase == "forward")


def test_at_the_end_of_forward_the_gradients_are_the_whole_difference(batch_2, two_by_two):
    assert forward_end(two_by_two) - forward_end(batch_2) == GRADIENTS
    assert [run.timeline.phase[run.timeline.peak] for run in (batch_2, two_by_two)] == ["backward"] * 2


def test_at_its_peak_the_micro_batch_holds_a_few_gradients_and_the_second_part_a_new_one(batch_2, two_by_two):
    def shapes(run, role):
        return [record.shape for record in run.live_at_peak if record.role == role]

    assert 0 < len(shapes(batch_2, "gradients")) < 10 < len(shapes(two_by_two, "gradients"))
    new = (FusionConfig().width, 4 * FusionConfig().width)  # of the last block's feed_forward.down
    assert new in shapes(two_by_two, "temporaries") and new not in shapes(batch_2, "temporaries")


@pytest.mark.parametrize("micro_steps", [4, 8])
def test_more_parts_cost_no_more(card, cells, two_by_two, micro_steps):
    assert card.run(cells["training"](micro_steps), 2 * micro_steps).peak_allocated == two_by_two.peak_allocated


def test_gradients_set_to_zero_cost_as_much(card, cells, two_by_two):
    kept = card.run(cells["training"](1, set_to_none=False), 2)
    assert kept.peak_allocated == pytest.approx(two_by_two.peak_allocated, rel=0.001)


def test_one_backward_at_the_end_keeps_every_graph(card, cells):
    assert "OUT OF MEMORY" in stored_text(NAME, "one-backward-run")
    larger = open_card(kind="simulated", capacity=40 * GiB)
    whole = larger.run(cells["training"](), 4)
    assert larger.run(cells["train_one_backward"], 4).peak_allocated == pytest.approx(whole.peak_allocated, rel=0.02)


def test_time_and_work(batch_2, two_by_two):
    assert two_by_two.flops == 2 * batch_2.flops
    assert 1.9 < two_by_two.estimated_seconds / batch_2.estimated_seconds < 2
    ratio, operations = re.findall(r"([\d.]+) times", stored_text(NAME, "time-run"))[2:]
    assert 1 <= float(ratio) < 1.05 and operations == "1.00"  # beside batch 4: 2 x 2 is not faster


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


def test_with_dropout_the_large_batch_differs_from_itself_as_much():
    in_parts, itself = map(float, re.findall(r": +([\d.]+)", stored_text(NAME, "dropout")))
    assert in_parts == pytest.approx(itself, abs=0.1) and min(in_parts, itself) > 0.1


def test_with_mixed_precision_the_price_is_the_same():
    micro, accumulated = map(float, re.findall(r"peak ([\d.]+) GiB", stored_text(NAME, "mixed-run")))
    assert 0.8 * GRADIENTS < (accumulated - micro) * GiB < GRADIENTS


@pytest.mark.parametrize(("overflows", "moves"), [(False, True), (True, False)])
def test_an_overflow_in_one_part_skips_the_whole_step(overflows, moves):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cpu", init_scale=4.0)
    for part in (torch.tensor([float("inf") if overflows else 1.0, 0.0]), torch.tensor([0.0, 2.0])):
        scaler.scale((weight * part).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert (weight.tolist() != [1.0, 1.0]) == moves
    assert scaler.get_scale() == (2.0 if overflows else 4.0)


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
