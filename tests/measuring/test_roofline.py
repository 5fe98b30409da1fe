"""The estimate of time, counted by hand: arithmetic where it is the limit, memory traffic where that is."""

import dataclasses

import pytest
import torch

from helpers.cards.catalogue import CARDS
from helpers.cards.simulated_card import SimulatedCard

SPEC = dataclasses.replace(CARDS["RTX 3090"], flops_fp32=1e12, flops_half=2e12, bandwidth=1e11)
CARD = SimulatedCard(SPEC)


def seconds(train) -> float:
    return CARD.run(train, 1, expect_gradients=False).estimated_seconds


def test_a_matrix_product_is_bound_by_arithmetic_and_half_precision_is_faster():
    def product(dtype):
        def train(device, batch_size):
            a = torch.empty(4096, 4096, device=device, dtype=dtype)
            a @ a

        return seconds(train)

    assert product(torch.float32) == pytest.approx(2 * 4096**3 / 1e12)
    assert product(torch.float16) == pytest.approx(2 * 4096**3 / 2e12)


def test_an_elementwise_operator_is_bound_by_traffic_and_a_view_is_free():
    def train(device, batch_size):
        a = torch.empty(1024, 1024, device=device)
        a.t().view(-1, 1024).exp()

    assert seconds(train) == pytest.approx(2 * 4 * 1024**2 / 1e11)


def test_an_expanded_tensor_is_read_once():
    def train(device, batch_size):
        torch.empty(1, 1024, device=device).expand(1024, 1024).exp()

    assert seconds(train) == pytest.approx((4 * 1024 + 4 * 1024**2) / 1e11)
