"""The training script of b.pickle, for exercise 2 of 10_read_a_snapshot."""

import dataclasses

import torch
from torch.nn import functional as F

from helpers import FusionConfig, FusionTransformer, make_batch

config = FusionConfig()


class AnyLength(FusionTransformer):
    """The reference model for texts of any length up to config.seq_len; returns the loss."""

    def forward(self, vit, t5, answer):
        h = self.fusion(vit.flatten(0, 1), t5.flatten(0, 1))
        h = self.run_blocks(h + self.position[:h.shape[1]])
        first = self.norm(h)[:, 0].view(*vit.shape[:2], -1)
        return F.cross_entropy(self.head(first.mean(1)), answer)


def train(device, batch_size):
    model = AnyLength(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (352, 512, 512):  # tokens of the longest text in each batch
        batch = make_batch(dataclasses.replace(config, seq_len=length), batch_size, device)
        model(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()
