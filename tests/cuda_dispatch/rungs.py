"""The rungs of the ladder as training functions: what the byte tests run, simulated and on CUDA's dispatch."""

import contextlib
import dataclasses

import torch
from torch.utils.checkpoint import checkpoint

from helpers.data import make_batch
from helpers.model import FusionConfig, FusionTransformer


class CheckpointedTransformer(FusionTransformer):
    """The reference model with every block checkpointed."""

    def run_blocks(self, h):
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return h


def training_function(amp=None, checkpointing=False, fusion="concat", attention="eager", accumulate=1,
                      make_optimizer=torch.optim.AdamW):
    """Two optimizer steps of the reference model. amp: None, torch.float16 (with GradScaler) or torch.bfloat16."""
    config = dataclasses.replace(FusionConfig(), fusion=fusion, attention=attention)

    def train(device, batch_size):
        with device:  # built in place: the order of allocations is then the same wherever this runs
            model = (CheckpointedTransformer if checkpointing else FusionTransformer)(config)
        optimizer = make_optimizer(model.parameters())
        scaler = torch.amp.GradScaler(device.type, enabled=amp is torch.float16)
        for _ in range(2):
            for _ in range(accumulate):
                batch = make_batch(config, batch_size // accumulate, device)
                with torch.autocast(device.type, dtype=amp) if amp else contextlib.nullcontext():
                    loss, logits = model(**batch)
                scaler.scale(loss / accumulate).backward()
                del loss, logits
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train


RUNGS = {
    "baseline": {},
    "amp fp16": {"amp": torch.float16},
    "amp bf16": {"amp": torch.bfloat16},
    "checkpointing": {"checkpointing": True},
    "amp fp16 + checkpointing": {"amp": torch.float16, "checkpointing": True},
    "project-features": {"fusion": "project-features"},
    "project-tokens": {"fusion": "project-tokens"},
    "project-add": {"fusion": "project-add"},
    "accumulation 2 x 2": {"accumulate": 2},
    "sdpa": {"attention": "sdpa"},
    "amp fp16 + sdpa": {"amp": torch.float16, "attention": "sdpa"},
    "amp fp16 + checkpointing + sdpa": {"amp": torch.float16, "checkpointing": True, "attention": "sdpa"},
    "amp fp16 + checkpointing + project-features": {
        "amp": torch.float16, "checkpointing": True, "fusion": "project-features"},
}
