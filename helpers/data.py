"""Documents to train on: random features with an answer that can be learned from them."""

import math

import torch

from helpers.model import FusionConfig
from helpers.units import check_whole_number

GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
SIGNAL = 0.5  # size of the signal beside noise of size 1


def make_batch(config: FusionConfig, batch_size: int, device="cpu", seed: int | None = None) -> dict[str, torch.Tensor]:
    """A batch of made-up documents: {"vit": [B, pages, vit_dim], "t5": [B, pages, seq_len, t5_dim], "answer": [B]}.

    float32 features and int64 answers, made on `device`. The features are noise. The answer is written into it in two
    parts, one into the page images and one into the text, so a model has to join both to know it. seed: the same
    documents each time (on one device and version of PyTorch); without it, PyTorch's global generator decides. Raises
    TypeError or ValueError for a bad batch size.
    """
    check_whole_number("batch_size", batch_size)
    device = torch.device(device)
    generator = make_generator(device, seed)
    options = {"device": device, "generator": generator}
    answer = torch.randint(config.answers, (batch_size,), **options)
    vit = torch.randn(batch_size, config.pages, config.vit_dim, **options)
    t5 = torch.randn(batch_size, config.pages, config.seq_len, config.t5_dim, **options)
    parts = math.isqrt(config.answers - 1) + 1  # answer = image part x parts + text part
    vit += SIGNAL * direction(answer // parts, config.vit_dim)[:, None]  # the same on every page
    t5 += SIGNAL * direction(answer % parts, config.t5_dim)[:, None, None]  # the same on every token
    return {"vit": vit, "t5": t5, "answer": answer}


def direction(number: torch.Tensor, dim: int) -> torch.Tensor:
    """[B] whole numbers to [B, dim] directions: sines, nearly orthogonal for different numbers."""
    index = torch.arange(1, dim + 1, device=number.device)
    return torch.sin(GOLDEN_ANGLE * (number[:, None] + 1) * index)


def make_generator(device: torch.device, seed: int | None) -> torch.Generator | None:
    """A generator for `seed`; None where there is no seed, or no generator because tensors hold no data."""
    if seed is None or device.type not in ("cpu", "cuda"):
        return None
    return torch.Generator(device).manual_seed(seed)
