"""A wrong answer is told what is wrong, an unanswered one what to do, and neither stops the notebook."""

import dataclasses

import pytest
import torch

from helpers import checks, open_card
from helpers.units import GiB, MiB
from tests.measuring.factories import MadeUpCard, made_up_run


@pytest.fixture
def said(capsys):
    """said(check, *args, **kwargs): what it prints; it has to return nothing, so that a cell shows nothing else."""
    def call(check, *args, **kwargs):
        assert check(*args, **kwargs) is None
        return capsys.readouterr().out.strip()
    return call


@pytest.mark.parametrize("answer", [..., None])
def test_unanswered_says_what_to_do(said, answer):
    assert said(checks.number, answer, 4.0) == "Replace the ... with a number in GiB, then run this cell."
    assert "one of 'a', 'b'" in said(checks.choice, answer, "a", {"a": "yes", "b": "no"})
    assert said(checks.predict, answer, 4.0).startswith("Measured: 4.00 GiB. You have not guessed")
    assert "Write a function" in said(checks.training, MadeUpCard(made_up_run), answer, 2)


@pytest.mark.parametrize(("answer", "part"), [
    ("four", "is text"), (True, "bool is no number"), ([4], "list is no number"), (-4, "negative"),
    (float("nan"), "finite"), (float("inf"), "finite"), (4 * GiB, "divide by 2**30"),
])
def test_what_is_no_amount(said, answer, part):
    for check in (checks.number, checks.predict):
        text = said(check, answer, 4.0)
        assert part in text and "Right" not in text


def test_right_number(said):
    assert said(checks.number, 4.05, 4.0, why="Four blocks.") == "Right: 4.00 GiB. Four blocks."
    assert said(checks.number, torch.tensor(4.0).item(), 4) == "Right: 4.00 GiB."
    assert "too high" in said(checks.number, 4.1, 4.0)
    assert "Right" in said(checks.number, 4.1, 4.0, within=0.05)
    assert "Right" in said(checks.number, 0, 0) and "Not yet" in said(checks.number, 1, 0)


@pytest.mark.parametrize(("answer", "part"), [
    (4 * GiB / 1e9, "That is GB"), (4 * 1e9 / GiB, "7 % less"), (4 * 1024, "MiB"), (4 / 1024, "1024 too small"),
    (8, "twice"), (2, "float16 has 2"), (0.2, "20 sequences"), (0.8, "5 pages"), (1, "quarter"), (4000, "1000"),
])
def test_usual_mistakes_are_named(said, answer, part):
    text = said(checks.number, answer, 4.0)
    assert text.startswith("Not yet") and part in text


def test_bytes_are_named_where_the_unit_allows_them(said):
    assert "MiB counted in bytes" not in said(checks.number, 7 * MiB, 4.0, unit="MiB")
    assert "2**20" in said(checks.number, 4 * MiB, 4.0, unit="MiB")


def test_hints_come_first(said):
    hints = {8.0: "Gradients are counted twice."}
    assert said(checks.number, 8.0, 4.0, hints=hints) == "Not yet: 8.00 GiB is too high. Gradients are counted twice."
    assert "counted twice" in said(checks.predict, 8.0, 4.0, hints=list(hints.items()))
    assert "Take it apart" in said(checks.number, 5.3, 4.0, hints=hints)


def test_predict_says_the_gap(said):
    assert said(checks.predict, 20, 26.0) == ("Your guess: 20.00 GiB. Measured: 26.00 GiB.\n"
                                              "You are 6.00 GiB too low (23 % of it).")
    assert "within 5 %" in said(checks.predict, 25, 26.0)
    assert "You are 1 documents too high" in said(checks.predict, 3, 2, unit="documents")


def test_choice(said):
    why = {"a": "Parameters stay.", "b": "They do not halve."}
    assert said(checks.choice, " A) ", "a", why) == "Right: Parameters stay."
    assert said(checks.choice, "b", "a", why) == "Not yet: They do not halve."
    assert "not one of the answers" in said(checks.choice, "c", "a", why)
    assert "not one of the answers" in said(checks.choice, 1, "a", why)
    with pytest.raises(ValueError, match="no sentence"):
        checks.choice("a", "c", why)


def nothing(device, batch_size):
    """A training function for a card that makes the run up."""


def run_of(**changes):
    return MadeUpCard(lambda batch_size: made_up_run(batch_size, **changes))


def test_training_that_reaches_the_goal(said):
    text = said(checks.training, run_of(activations=0.5), nothing, 2, peak_below=5 * GiB, explain="One copy less.")
    assert text == "Right: batch 2 fits, peak 4.75 GiB. One copy less."
    assert "batch 3 fits as well" in said(checks.training, run_of(), nothing, 2, largest_batch_at_least=3)
    assert "as it should" in said(checks.training, run_of(fits=False), nothing, 2, fits=False)


def test_no_role_is_called_most_that_is_less_than_half(said):
    text = said(checks.training, run_of(activations=0.8), nothing, 2, peak_below=5 * GiB)
    assert "The largest part" in text and "Most" not in text


def test_work_can_be_limited(said):
    work = made_up_run(2).flops
    assert said(checks.training, run_of(), nothing, 2, flops_at_most=work).startswith("Right")
    text = said(checks.training, run_of(), nothing, 2, flops_at_most=work / 2)
    assert text == "Not yet: it computes 100% more than is allowed."


@pytest.mark.parametrize(("changes", "part"), [
    ({"has_gradients": False, "without_gradient": ("a", "b")}, "no parameter got a gradient"),
    ({"without_gradient": ("fusion.vit",)}, "1 trainable parameters got no gradient (fusion.vit)"),
    ({"steps": 0}, "no optimizer step"), ({"steps": 1}, "one optimizer step"), ({"left_behind": GiB}, "still held"),
    ({"activations": 3.0}, "Most of it, 6.00 GiB, is activations"),
])
def test_training_that_goes_wrong(said, changes, part):
    text = said(checks.training, run_of(**changes), nothing, 2, peak_below=8 * GiB)
    assert text.startswith("Not yet") and part in text


def test_training_that_runs_out_of_memory_names_the_culprits(said):
    text = said(checks.training, run_of(fits=False), nothing, 4)
    assert "asked for 256.00 MiB more" in text and "The largest tensors:\n" in text
    assert text.split("\n")[2].split()[:3] == ["6.88", "GiB", "activations"]


def test_training_that_does_not_use_the_batch_size(said):
    card = MadeUpCard(lambda batch_size: dataclasses.replace(made_up_run(2), batch_size=batch_size))
    assert "does not use batch_size" in said(checks.training, card, nothing, 2, largest_batch_at_least=19)


def test_larger_batch_that_fails(said):
    card = MadeUpCard(lambda batch_size: made_up_run(batch_size, fits=batch_size < 3))
    assert "batch 3 runs out of memory" in said(checks.training, card, nothing, 2, largest_batch_at_least=3)


def test_an_exception_is_one_sentence_and_the_line(said):
    def wrong(device, batch_size):
        return {}["optimizer"]

    text = said(checks.training, run_of(), wrong, 2)
    assert text == "Not yet: KeyError: 'optimizer'\nIt happened in this line: return {}[\"optimizer\"]"
    assert "int, not a function" in said(checks.training, run_of(), 3, 2)


def test_two_devices_are_explained(said):
    def wrong(device, batch_size):
        torch.nn.Linear(4, 4).to(device)(torch.ones(batch_size, 4))

    text = said(checks.training, open_card(kind="simulated"), wrong, 2)
    assert "everything you make on `device`" in text and "in this line: torch.nn.Linear(4, 4)" in text


def test_author_gives_bytes():
    with pytest.raises(ValueError, match=r"20 \* GiB"):
        checks.training(run_of(), nothing, 2, peak_below=20)


def small_training(steps=2, backward=True, leak=None):
    def train(device, batch_size):
        model = torch.nn.Linear(256, 256).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            loss = model(torch.ones(batch_size, 256, device=device)).sum()
            if backward:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if leak is not None:
                leak.append(loss)
    return train


def test_training_on_the_simulated_card(said):
    """The same with real runs: what the recorder says has to mean what the checks take it for."""
    card = open_card(kind="simulated")
    assert said(checks.training, card, small_training(), 4, peak_below=100 * MiB).startswith("Right: batch 4 fits")
    assert "one optimizer step" in said(checks.training, card, small_training(steps=1), 4)
    assert "no parameter got a gradient" in said(checks.training, card, small_training(backward=False), 4)
    assert "still held" in said(checks.training, card, small_training(leak=[]), 4)
    assert "put nothing on the card" in said(checks.training, card, nothing, 4)
    assert "runs out of memory" in said(checks.training, card, small_training(), 2 ** 28)
