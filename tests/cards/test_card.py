"""The simulated card: the story of the series, recovery after an error, and one clear sentence for bad input."""

import json
import pathlib
import time

import pytest
import torch

from helpers import GiB, open_card
from tests.cuda_dispatch.rungs import RUNGS, training_function

BYTES = pathlib.Path(__file__).parents[1] / "data" / "cuda_dispatch_rungs.json"


@pytest.fixture(scope="module")
def card():
    return open_card("RTX 3090", kind="simulated")


def small(device, batch_size):
    """Two steps of a small model."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(batch_size, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 9.6), (2, 15.0), (3, 20.5)])
def test_small_batches_fit(card, batch_size, expected):
    run = card.run(training_function(), batch_size)
    assert run.fits and run.error is None
    assert run.peak_allocated / GiB == pytest.approx(expected, rel=0.02)
    assert sum(run.roles_at_peak.values()) == run.peak_allocated
    assert run.left_behind == 0


def test_batch_4_runs_out_of_memory_and_says_where(card):
    run = card.run(training_function(), 4)
    assert not run.fits
    assert run.error.startswith("CUDA out of memory (simulated). Tried to allocate ")
    assert "Of the allocated memory" in run.error and "is reserved by PyTorch but unallocated" in run.error
    assert run.request.module.startswith("blocks.") and run.request.module in run.error
    assert run.culprits[0].role == "activations" and run.culprits[0].module.startswith("blocks.")
    assert run.left_behind == 0
    time.sleep(0.25)
    assert card.run(small, 2).fits


def test_running_out_in_backward_and_in_the_optimizer_step(card):
    train = training_function(checkpointing=True)
    phases = set()
    for gib in (4.0, 5.0, 6.4, 7.5):
        small_card = open_card("RTX 3090", kind="simulated", capacity=int(gib * GiB))
        run = small_card.run(train, 4)
        assert not run.fits and run.left_behind == 0 and "Asked for by" in run.error
        assert small_card.run(small, 2).fits
        phases.add(run.request.phase)
    assert phases == {"backward", "optimizer step"}


@pytest.mark.parametrize("error", [KeyError("broken"), KeyboardInterrupt()])
def test_an_error_in_backward_reaches_the_reader(card, error):
    def breaks(device, batch_size):
        def hook(grad):
            raise error

        x = torch.nn.Linear(8, 8).to(device)(torch.zeros(batch_size, 8, device=device))
        x.register_hook(hook)
        x.sum().backward()

    with pytest.raises(type(error)):
        card.run(breaks, 2)
    assert card.run(small, 2).left_behind == 0


def test_batch_4_fits_on_a_larger_card():
    run = open_card("A100 40GB", kind="simulated").run(training_function(), 4)
    assert run.fits and run.peak_allocated / GiB == pytest.approx(26.0, rel=0.02)


@pytest.mark.parametrize("name", RUNGS)
def test_peaks_equal_cuda_dispatch_to_the_byte(name):
    expected = json.loads(BYTES.read_text())["peaks"][name]  # made by tests/cuda_dispatch/make_rungs.py
    run = open_card("A100 40GB", kind="simulated", capacity=1 << 40).run(training_function(**RUNGS[name]), 4)
    assert (run.peak_allocated, run.peak_reserved) == (expected["allocated"], expected["reserved"])


@pytest.mark.parametrize(("batch_size", "error", "message"), [
    (0, ValueError, "at least 1, got 0"), (-1, ValueError, "at least 1, got -1"),
    ("4", TypeError, "whole number, got '4'"), (True, TypeError, "whole number")])
def test_a_bad_batch_size_is_one_sentence(card, batch_size, error, message):
    with pytest.raises(error, match=message):
        card.run(small, batch_size)
    assert card.run(small, 2).fits


def test_an_unknown_card_lists_the_known_ones():
    with pytest.raises(ValueError, match="Known cards: RTX 3060 12GB, T4, RTX 3090"):
        open_card("RTX 9999", kind="simulated")


def test_a_run_without_a_backward_pass_says_so(card):
    def forward_only(device, batch_size):
        torch.nn.Linear(8, 8).to(device)(torch.randn(batch_size, 8, device=device))

    with pytest.raises(RuntimeError, match="without a backward pass"):
        card.run(forward_only, 2)
    assert card.run(forward_only, 2, expect_gradients=False).fits
    assert card.run(small, 2).fits


def test_an_error_whose_traceback_holds_tensors_leaves_nothing(card):
    kept = []

    def fails(device, batch_size):
        big = torch.zeros(2**28, device=device)
        try:
            raise KeyError(float(big.numel()))
        except KeyError as error:
            kept.append(error)
            raise

    with pytest.raises(KeyError):
        card.run(fails, 2)
    assert card.run(small, 2).left_behind == 0 and card.allocated < GiB


def test_what_a_name_outside_still_holds_is_reported(card):
    kept = []

    def leaks(device, batch_size):
        kept.append(torch.zeros(2**20, device=device))
        small(device, batch_size)

    assert card.run(leaks, 2).left_behind == 4 * 2**20
    kept.clear()
    assert card.run(small, 2).left_behind == 0


def test_an_optimizer_step_inside_backward_leaves_nothing(card):
    def step_in_backward(device, batch_size):
        layer = torch.nn.Linear(512, 512).to(device)
        optimizers = {parameter: torch.optim.AdamW([parameter]) for parameter in layer.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            layer(torch.randn(batch_size, 512, device=device)).sum().backward()

    assert card.run(step_in_backward, 2).left_behind == 0


@pytest.mark.parametrize("options", [{}, {"amp": torch.float16, "fusion": "project-add"}])
def test_max_batch_size_is_the_last_that_fits(card, options):
    train = training_function(**options)
    sizes = []
    largest = card.max_batch_size(lambda device, size: (sizes.append(size), train(device, size)))
    assert card.run(train, largest).fits and not card.run(train, largest + 1).fits
    assert {largest, largest + 1, largest + 2} <= set(sizes) and len(sizes) <= 8


def test_max_batch_size_where_the_line_misleads(card):
    def curved(device, batch_size):
        torch.empty(batch_size**3, 2**20, dtype=torch.uint8, device=device)

    def flat(device, batch_size):
        torch.empty(2**20, device=device)

    def too_large(device, batch_size):
        torch.empty(2**40, device=device)

    def gap(device, batch_size):  # a single batch size that does not fit is not the end
        torch.empty(30 if batch_size == 5 else batch_size, 2**30, dtype=torch.uint8, device=device)

    assert card.max_batch_size(gap) == 22
    assert card.max_batch_size(curved) == 28  # 28^3 MiB is 21.4 GiB, 29^3 is 23.8
    assert card.max_batch_size(flat, limit=100) == 100
    assert card.max_batch_size(too_large) == 0
