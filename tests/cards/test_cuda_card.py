"""The CUDA card's own logic, with PyTorch's CUDA calls replaced by recorded answers: no GPU, and no claim about one."""

import pytest
import torch

from helpers.cards import cuda_card
from helpers.cards.catalogue import CARDS
from helpers.cards.cuda_card import CudaCard
from helpers.units import GiB

ANSWERS = {
    "get_device_name": "Big GPU", "current_device": 0, "mem_get_info": (79 * GiB, 80 * GiB), "memory_reserved": 0,
    "memory_allocated": 0, "synchronize": None, "empty_cache": None, "reset_peak_memory_stats": None,
    "max_memory_allocated": 3 * GiB, "max_memory_reserved": 4 * GiB,
    "memory_stats": {"num_device_alloc": 5, "num_alloc_retries": 0}}


@pytest.fixture
def fractions(monkeypatch):
    """The caps that were set, in order."""
    for name, answer in ANSWERS.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)
    monkeypatch.setattr(cuda_card, "clear_cublas_workspaces", lambda: None)
    caps = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda fraction, *args: caps.append(fraction))
    return caps


@pytest.fixture
def card(fractions):
    card = CudaCard(CARDS["RTX 3090"])
    card.device = torch.device("cpu")
    return card


def train(device, batch_size):
    model = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.zeros(batch_size, 4, device=device)).sum().backward()
        optimizer.step()


def test_a_larger_card_is_capped_and_says_so(card, fractions, capsys):
    assert fractions == [pytest.approx(22.5 / 80)] and card.capacity == CARDS["RTX 3090"].capacity
    CudaCard(CARDS["RTX 3090"])
    assert "Big GPU, 80.00 GiB, held to 22.50 GiB for PyTorch, as on an RTX 3090." in capsys.readouterr().out
    card.close()
    assert fractions[-1] == 1.0


def test_a_smaller_card_keeps_what_it_has(fractions, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (11 * GiB, 12 * GiB))
    assert CudaCard(CARDS["RTX 3090"]).capacity == 11 * GiB
    assert "11.00 GiB free for PyTorch, less than on an RTX 3090" in capsys.readouterr().out


def test_peaks_are_pytorchs_own_counters(card):
    run = card.run(train, 2, expect_gradients=False)  # tensors of the CPU do not count, so no gradient is seen
    assert (run.peak_allocated, run.peak_reserved) == (3 * GiB, 4 * GiB)
    assert run.fits and not run.is_simulated and run.seconds > 0 and run.left_behind == 0


def test_an_out_of_memory_error_ends_the_run_not_the_notebook(card):
    def fails(device, batch_size):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    run = card.run(fails, 2)
    assert not run.fits and run.error.startswith("CUDA out of memory.") and run.seconds is None


def test_each_run_keeps_its_own_cards_cap(card, fractions):
    """The cap is the process's: opening another card changes it for all."""
    seen = []

    def watched(device, batch_size):
        seen.append(fractions[-1])
        train(device, batch_size)

    larger = CudaCard(CARDS["RTX 3090"], capacity=40 * GiB)
    larger.device = torch.device("cpu")
    for each in (card, larger):
        each.run(watched, 2, expect_gradients=False)
    assert set(seen[:len(seen) // 2]) == {22.5 / 80} and set(seen[len(seen) // 2:]) == {40 / 80}
