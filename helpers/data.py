"""Batches for the reference model."""

import torch

from helpers.model import FusionConfig


def make_batch(config: FusionConfig, batch_size: int, device) -> dict[str, torch.Tensor]:
    """Features and answers: {"vit": [B, pages, 768], "t5": [B, pages, T, 1024], "answer": [B]}."""
    shape = (batch_size, config.pages)
    return {
        "vit": torch.randn(*shape, config.vit_dim, device=device),
        "t5": torch.randn(*shape, config.seq_len, config.t5_dim, device=device),
        "answer": torch.zeros(batch_size, dtype=torch.long, device=device),
    }
