"""Batches: the shapes the model takes, an answer that can be learned from both sides together, no memory beside it."""

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import MiB, open_card
from helpers.data import make_batch
from helpers.model import FUSIONS, FusionConfig, FusionTransformer

TINY = FusionConfig.tiny()
CHANCE = 1 / TINY.answers


def train(config, steps=120, change=lambda batch: batch):
    """Losses of real training on the CPU, and the accuracy on documents that training did not see."""
    torch.manual_seed(0)
    model = FusionTransformer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        loss, _ = model(**change(make_batch(config, 32, "cpu", seed=step)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    held_out = change(make_batch(config, 512, "cpu", seed=10_000))
    with torch.no_grad():
        correct = model.eval()(**held_out).logits.argmax(1) == held_out["answer"]
    return losses, correct.float().mean().item()


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_learns_in_seconds(fusion):
    losses, accuracy = train(dataclasses.replace(TINY, fusion=fusion))
    assert losses[0] > 2.5  # chance is log(16) = 2.77
    assert sum(losses[-20:]) / 20 < 1.0
    assert accuracy > 10 * CHANCE


@pytest.mark.parametrize("side", ["vit", "t5"])
def test_one_side_alone_does_not_know_the_answer(side):
    _, accuracy = train(TINY, change=lambda batch: {**batch, side: torch.zeros_like(batch[side])})
    assert accuracy < 6 * CHANCE  # it can know a quarter of the answer: 4 x chance


def test_shapes_types_and_range():
    batch = make_batch(dataclasses.replace(TINY, answers=20), 400, seed=0)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "vit": (400, 3, 24), "t5": (400, 3, 8, 32), "answer": (400,)}
    assert (batch["vit"].dtype, batch["t5"].dtype, batch["answer"].dtype) == (torch.float32, torch.float32, torch.int64)
    assert batch["answer"].unique().tolist() == list(range(20))


def test_a_seed_gives_the_same_documents_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second, other = make_batch(TINY, 4, seed=1), make_batch(TINY, 4, seed=1), make_batch(TINY, 4, seed=2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["t5"], other["t5"])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_batches_without_data(device):
    mode = FakeTensorMode() if device == "cpu" else torch.device("meta")
    with mode:
        batch = make_batch(FusionConfig(), 4, device, seed=0)
    assert batch["t5"].shape == (4, 5, 512, 1024) and batch["t5"].device.type == device


def test_the_batch_is_its_own_peak():
    def make(device, batch_size):
        make_batch(FusionConfig(), batch_size, device, seed=0)

    run = open_card("RTX 3090", kind="simulated").run(make, 4, expect_gradients=False)
    batch = 4 * 4 * (4 * 5 * 768 + 4 * 5 * 512 * 1024) // 4 + 4 * 8
    assert batch <= run.peak_allocated < batch + MiB / 4


@pytest.mark.parametrize(("batch_size", "error", "message"), [
    (0, ValueError, "batch_size must be at least 1, got 0."),
    (-1, ValueError, "batch_size must be at least 1, got -1."),
    ("4", TypeError, "batch_size must be a whole number, got '4'."), (True, TypeError, "a whole number, got True."),
    (2.5, TypeError, "a whole number, got 2.5.")])
def test_a_bad_batch_size_is_one_sentence(batch_size, error, message):
    with pytest.raises(error, match=message):
        make_batch(TINY, batch_size)
