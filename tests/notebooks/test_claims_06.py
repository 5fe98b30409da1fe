"""What 06_clearing_the_cache says in words, held against runs of its own code on the simulated card."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers import GiB, MiB, make_batch, open_card
from tests.notebooks.notebook_cells import run_cells

NAME = "06_clearing_the_cache"
WORKSPACE = 8_519_680  # bytes that cuBLAS takes, once for forward and once for backward


@pytest.fixture(scope="module")
def said():
    """The names of the notebook after its cells that measure."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CARD", "simulated")
        names = run_cells(NAME, "imports", "series-train", "look", "look-print", "train", "guess", "measure-2",
                          "measure-4", "gap-print", "each-step-run", "each-step-print", "any-length",
                          "first-iterations-run", "first-iterations-print", "fragment-small", "lengths",
                          "lengths-run", "remedies", "validation", "validation-print", "kept-losses",
                          "cudnn-modules", "check-validation", "exercise-change")
        torch.backends.cudnn.benchmark = False
        yield names


def operators(step) -> set[str]:
    """The matrix products and convolutions of a step, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return {str(name) for name in counter.get_flop_counts()["Global"]}


def unallocated(run) -> int:
    number, unit = run.error.split("allocated by PyTorch, and ")[1].split()[:2]
    return float(number) * {"GiB": GiB, "MiB": MiB}[unit]


def test_three_numbers(said):
    seen = said["seen"]
    assert all(allocated <= reserved < used for allocated, reserved, used in seen.values())
    assert seen["before training"][:2] == (0, 0)
    assert seen["after step 2"][1] == seen["everything deleted"][1] > 15 * GiB  # the old peak stays
    assert 0 <= seen["empty_cache()"][0] - 2 * WORKSPACE < 2 * MiB  # the tails of their blocks count
    assert seen["everything deleted"][0] == seen["empty_cache()"][0]
    assert seen["empty_cache()"][1] < 24 * MiB
    assert seen["after step 2"][0] / GiB == pytest.approx(4.1, abs=0.1)


def test_the_advice_changes_nothing(said):
    plain, advised = said["plain"], said["advised"]
    assert (plain.peak_allocated, plain.peak_reserved) == (advised.peak_allocated, advised.peak_reserved)
    assert plain.live_at_peak == advised.live_at_peak and plain.flops == advised.flops
    failed, again = said["failed"], said["failed_advised"]
    assert not failed.fits and not again.fits
    assert failed.error == again.error and failed.request == again.request


def test_the_cache_was_given_back_and_was_not_the_load(said):
    failed = said["failed"]
    assert failed.retries >= 1
    assert unallocated(failed) < 0.02 * sum(failed.roles_at_peak.values())


def test_clearing_each_step_looks_emptier_and_costs_calls(said):
    between, calls, cleared = said["between"], said["stepwise"], said["four"]
    assert between[True] < between[False] / 2  # "I save half", in nvidia-smi
    assert calls[False] == 0 and calls[True] > 50
    assert 0 <= said["plain"].peak_allocated - cleared.peak_allocated < 16 * MiB  # "a few MiB"


def test_an_old_peak_stays_reserved(said, monkeypatch):
    monkeypatch.setitem(said, "card", card := open_card(kind="simulated"))
    line, held = card.run(said["training_with"]([512, 512, 128, 128], ["step 3"]), 2).timeline, said["held"]
    peaks = [max(size for size, at in zip(line.allocated, line.step, strict=True) if at == step) for step in range(4)]
    assert peaks[2] < peaks[1] / 2
    assert held[2][1] == held[3][1] > 15 * GiB and held[4][1] < held[3][1] / 1.9


def test_the_small_story(said):
    story, bad = said["story"], "OUT OF MEMORY, 592 MiB reserved but unallocated"
    assert story("600, freed", "8 stay")[0] == story("600, freed", "8 stay", "empty_cache")[0] == bad
    assert story("8 stay", "600, freed")[0] == story("600, freed", "empty_cache", "8 stay")[0] == "fits"
    assert story("600, freed", "8 stay", expandable_segments=True)[0] == "fits"


def test_a_shorter_first_batch_breaks_the_second_step(said):
    full, shorter = said["full"], said["shorter"]
    assert full.fits and not shorter.fits
    assert shorter.timeline.step[-1] == 1 and shorter.request.phase == "forward"
    assert shorter.request.shape == (15, 28, 512, 512)
    assert unallocated(shorter) > 1.8 * GiB > 4 * shorter.request.bytes
    largest = max(size for segment in said["snapshots"][0] for _, size, is_free in segment.blocks if is_free)
    assert largest < shorter.request.bytes / 8
    assert shorter.retries > 0  # PyTorch has emptied its cache


def test_what_helps(said):
    assert {name.strip(): run.fits for name, run in said["remedies"].items()} == {
        "nothing": False, "clear before training": False, "clear after each step": False,
        "clear before Adam's state": True, "longest batch first": True, "the same, and cleared": False,
        "expandable segments": True}
    assert said["remedies"]["expandable segments"].driver_calls > 5 * said["remedies"]["nothing"].driver_calls


@pytest.mark.parametrize(("first", "fits"), [(160, True), (176, False), (256, False), (400, False), (464, False)])
def test_it_is_a_pattern_and_352_one_of_the_worst(said, monkeypatch, first, fits):
    card = open_card(kind="simulated", capacity=21 * GiB)
    monkeypatch.setitem(said, "card", card)
    run = card.run(said["training_with"]([first, 512, 512]), 3)
    assert run.fits == fits
    if not fits:
        assert 0.4 * GiB < unallocated(run) < unallocated(said["shorter"])


@pytest.mark.parametrize("clear", [False, True])
def test_adam_puts_its_state_into_cached_segments(said, clear):
    """After the first step nothing lives but parameters and Adam's state; what cannot go back is beside them."""
    card, stuck = open_card(kind="simulated"), []

    def train(device, batch_size):
        model = said["AnyLength"](said["config"]).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        batch = make_batch(said["dataclasses"].replace(said["config"], seq_len=352), batch_size, device)
        model(**batch).backward()
        if clear:
            card.empty_cache()
        optimizer.step()
        optimizer.zero_grad()
        card.empty_cache()
        stuck.append(card.reserved - card.allocated)

    card.run(train, 3)
    assert (stuck[0] < 0.6 * GiB) if clear else (stuck[0] > 1.3 * GiB)


def test_validation_without_no_grad(said):
    kept, number, none = (size / GiB for size in said["peaks"].values())
    model = said["plain"].roles_at_peak["parameters"] / GiB
    assert (number - model) / (kept - model) == pytest.approx(2 / 3, rel=0.02)  # two sets of activations, and three
    assert none - model < 0.1 * (number - model)


def test_a_loss_after_backward_is_512_bytes(said):
    assert said["kept"].peak_allocated - said["numbers"].peak_allocated == 3 * 512
    assert 469_530 * 9_997 * 4 / GiB == pytest.approx(17.49, abs=0.01)


def test_there_is_no_convolution(said):
    tiny, vit = said["tiny"], said["vit"]
    model, batch = said["FusionTransformer"](tiny), make_batch(tiny, 2)
    assert operators(lambda: model(**batch).loss.backward()) == {"aten.addmm", "aten.bmm", "aten.mm"}
    assert "aten.convolution" in operators(lambda: vit(torch.zeros(1, 3, 224, 224)))
    convolutions = said["convolutions"]
    assert convolutions(said["FusionTransformer"](said["tiny"])) == [] and len(convolutions(said["vit"])) == 1


def test_the_exercise_fails_in_the_second_step(said):
    run = said["card"].run(said["train_and_validate"], 2)
    assert not run.fits and run.timeline.step[-1] == 1


def validating(said, validate):
    """The exercise's loop with `validate(model, batch)`, which gives what is kept of a validation, in a list."""
    def train(device, batch_size):
        model = said["FusionTransformer"](said["config"]).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        batch, validation = make_batch(said["config"], batch_size, device), []
        for _ in range(2):
            model.train()
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            validation += validate(model, batch)
        return validation

    return train


def without_graph(model, batch):
    with torch.no_grad():
        return [model(**batch).loss]


ANSWERS = {
    "no graph": (without_graph, "Right: batch 2 fits, peak 15.08 GiB."),
    "a number": (lambda model, batch: [loss.item() for loss in without_graph(model, batch)], "Right:"),
    "nothing": (lambda model, batch: [], "Not yet: 0 validation losses are returned."),
    "made up": (lambda model, batch: [0.0], "it computes 0.0 forward passes"),
    "not kept": (lambda model, batch: without_graph(model, batch)[:0], "Not yet: 0 validation losses"),
    "with a graph": (lambda model, batch: [model(**batch).loss.item()], "model.eval() does not switch autograd off."),
    "graphs kept": (lambda model, batch: [model(**batch).loss], "runs out of memory"),
    "one page": (lambda model, batch: without_graph(model, {**batch, "vit": batch["vit"][:, :1],
                                                            "t5": batch["t5"][:, :1]}), "it computes 0.4 forward"),
    "an error": (lambda model, batch: [model.loss], "It happened in this line: \"an error\": (lambda model, batch:"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_exercise_wants_both_losses_and_no_graph(said, capsys, answer):
    validate, expected = ANSWERS[answer]
    said["check_validation"](validating(said, validate))
    printed = capsys.readouterr().out
    assert expected in printed and (answer in ("no graph", "a number")) == printed.startswith("Right")


def test_the_exercise_wants_a_list(said, capsys):
    said["check_validation"](said["train"])  # returns None
    assert "0 validation losses" in capsys.readouterr().out


def test_the_failing_request_would_fit_in_one_piece_and_the_batch_would_not(said):
    """22.15 GiB and 280 MiB are less than 22.50: expandable segments move the failure, they do not cure it."""
    card = open_card(kind="simulated", expandable_segments=True)
    run, plain = card.run(said["train"], 4), open_card(kind="simulated").run(said["train"], 4)
    assert not run.fits
    assert sum(plain.roles_at_peak.values()) + plain.request.bytes < plain.capacity
    assert sum(run.roles_at_peak.values()) > sum(plain.roles_at_peak.values())
