"""Cases of fusion, attention and other hardware, as people reported them (sources: tests/cases/test_cases.py)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import GiB, MiB, open_card
from helpers.cards.catalogue import CARDS
from helpers.cards.cuda_card import CudaCard


@pytest.fixture(scope="module")
def card():
    return open_card(kind="simulated")


def test_F1_the_axis_decides_what_cat_means():
    page, text, answers = torch.ones(4, 16, 8), torch.ones(4, 16, 8), torch.zeros(4, dtype=torch.long)
    shapes = {dim: tuple(torch.cat((page, text), dim).shape) for dim in (0, 1, -1)}
    assert shapes == {0: (8, 16, 8), 1: (4, 32, 8), -1: (4, 16, 16)}
    with pytest.raises(ValueError, match="Expected input batch_size"):
        F.cross_entropy(torch.cat((page, text), 0).mean(1), answers)
    for dim in (1, -1):
        assert F.cross_entropy(torch.cat((page, text), dim).mean(1), answers).isfinite()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # the layer behind it was made for one of the two
        nn.Linear(8, 8)(torch.cat((page, text), -1))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat((torch.ones(4, 197, 8), torch.ones(4, 512, 8)), -1)  # a ViT's tokens beside T5's


def fuse(device, batch_size, by_cat, held=None, card=None):
    """cat and one Linear, or two Linears added, over [batch, 512, 256] each; the fused tensor."""
    torch.manual_seed(0)
    joint = nn.Linear(512, 256).to(device)
    halves = [nn.Linear(256, 256, bias=first).to(device) for first in (True, False)]
    with torch.no_grad():
        for half, weight in zip(halves, joint.weight.chunk(2, dim=1), strict=True):
            half.weight.copy_(weight)
        halves[0].bias.copy_(joint.bias)
    pair = [torch.randn(batch_size, 512, 256, device=device, requires_grad=True) for _ in range(2)]
    before = card.allocated if card else 0
    fused = joint(torch.cat(pair, -1)) if by_cat else halves[0](pair[0]) + halves[1](pair[1])
    if card:
        held[by_cat] = card.allocated - before
        fused.sum().backward()
    return fused


def test_F1_cat_keeps_a_copy_that_two_linears_do_not_need(card):
    held = {}
    for by_cat in (True, False):
        card.run(lambda device, size, by_cat=by_cat: fuse(device, size, by_cat, held, card), 8, expect_gradients=False)
    assert held[True] - held[False] == 8 * 512 * 512 * 4
    assert torch.allclose(fuse("cpu", 1, True), fuse("cpu", 1, False), atol=1e-5)


def attend(q, k, v):
    return (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v


def held_by(card, function, tokens, **options) -> int:
    """Bytes that function(q, k, v) leaves for backward, its result included."""
    held = []

    def train(device, batch_size):
        qkv = [torch.randn(batch_size, 8, tokens, 64, device=device, requires_grad=True) for _ in range(3)]
        before = card.allocated
        y = function(*qkv, **options)
        held.append(card.allocated - before)
        y.sum().backward()

    card.run(train, 4, expect_gradients=False)
    return held[0]


def test_F3_twice_the_tokens_is_four_tables_or_twice_the_fused_kernel(card):
    own, fused = ({tokens: held_by(card, function, tokens) for tokens in (1024, 2048)}
                  for function in (attend, F.scaled_dot_product_attention))
    assert 3.7 < own[2048] / own[1024] <= 4 and fused[2048] / fused[1024] == pytest.approx(2, abs=0.05)
    table = 4 * 8 * 2048 * 2048 * 4
    assert own[2048] > table > 10 * fused[2048]
    # Dropout does not cost the fused kernel, as it does on a CPU.
    assert held_by(card, F.scaled_dot_product_attention, 2048, dropout_p=0.1) < 1.05 * fused[2048]


def test_F3_attention_weights_are_made_unless_told_otherwise(card):
    def training(**options):
        def train(device, batch_size):
            layer = nn.MultiheadAttention(256, 4, batch_first=True).to(device)
            x = torch.randn(batch_size, 1024, 256, device=device)
            layer(x, x, x, **options)[0].sum().backward()
        return train

    default, without = (card.run(training(**options), 4).peak_allocated for options in ({}, {"need_weights": False}))
    assert default - without > 4 * 4 * 1024 * 1024 * 4


def test_E5_an_old_peak_and_what_the_card_does_not_see(card):
    """In part: cuDNN's workspaces, which `benchmark` tries, exist on a GPU only."""
    reserved = []

    def train(device, batch_size):
        patches = nn.Conv2d(3, 768, 16, stride=16).to(device)
        optimizer = torch.optim.AdamW(patches.parameters())
        for size in (1024, 128, 128):
            patches(torch.randn(batch_size, 3, size, size, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if len(reserved) == 2:
                card.empty_cache()
            reserved.append(card.reserved)

    plain = card.run(train, 16)
    assert reserved[0] == reserved[1] > 4 * reserved[2]
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True
        searched = card.run(train, 16)
    finally:
        torch.backends.cudnn.benchmark = before
    assert searched.peak_reserved == plain.peak_reserved  # and so is no measurement of cuDNN


def fill(device, batch_size):
    return [torch.zeros(GiB // 4, device=device) for _ in range(batch_size)]  # 1 GiB each


def test_T2_a_cap_counts_what_is_reserved_and_not_the_context():
    card, seen = open_card(kind="simulated", capacity=3 * GiB + 10 * MiB), []

    def train(device, batch_size):
        kept = fill(device, batch_size)
        seen.append((card.reserved, card.device_used))
        del kept

    assert card.run(train, 3, expect_gradients=False).fits
    assert seen[0][0] <= card.capacity < seen[0][1]
    failed = card.run(train, 4, expect_gradients=False)
    assert not failed.fits and failed.peak_reserved <= card.capacity
    assert open_card(kind="simulated").run(train, 4, expect_gradients=False).fits  # a new card has no old cap


def test_T4_a_cap_gives_an_honest_error(monkeypatch):
    """In part: only a driver under Windows lends the computer's own memory. With a cap, as here, none is asked for."""
    assert not open_card(kind="simulated", capacity=16 * GiB).run(fill, 30, expect_gradients=False).fits
    caps = []
    for name, answer in (("get_device_name", "16 GB card"), ("current_device", 0), ("memory_reserved", 0),
                         ("mem_get_info", (15 * GiB, 16 * GiB))):
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", caps.append)
    CudaCard(CARDS["RTX 3090"])
    assert caps and caps[0] < 1


def test_T5_mps_has_no_peak_counter_and_is_not_imitated():
    """In part: Apple's and AMD's allocators are not here; what their PyTorch can be asked is."""
    there = ("current_allocated_memory", "driver_allocated_memory", "recommended_max_memory", "empty_cache",
             "set_per_process_memory_fraction")
    assert all(hasattr(torch.mps, name) for name in there)
    assert not any(hasattr(torch.mps, name) for name in ("max_memory_allocated", "reset_peak_memory_stats"))
    with pytest.raises(ValueError, match="Use 'cuda' or 'simulated'"):
        open_card(kind="mps")
