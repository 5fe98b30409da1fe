"""The training script of c.pickle, for exercise 3 of 10_read_a_snapshot."""

import torch

from helpers import FusionConfig, FusionTransformer, make_batch

config = FusionConfig()


def train(device, batch_size):
    model = FusionTransformer(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss, _ = model(**make_batch(config, batch_size, device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
