"""What can be chosen for a training run of the reference model, and the training function of a choice."""

import dataclasses

import torch
from torch.utils.checkpoint import checkpoint

from helpers.cards.catalogue import find_card
from helpers.data import make_batch
from helpers.model import FusionConfig, FusionTransformer
from helpers.units import check_whole_number

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OPTIMIZERS = {"AdamW": (torch.optim.AdamW, {}), "AdamW fused": (torch.optim.AdamW, {"fused": True}),
              "AdamW foreach=False": (torch.optim.AdamW, {"foreach": False}), "SGD": (torch.optim.SGD, {"lr": 0.01})}


@dataclasses.dataclass(frozen=True)
class Choices:
    """What can be chosen. Raises TypeError or ValueError with one sentence for what cannot be.

    batch: documents for each optimizer step, in `accumulation` micro-batches. width: features of a token with fusion
    "concat", of which 3/7 come from ViT and 4/7 from T5, as 768 and 1024 of 1792; the other fusions make it narrower.
    precision: "fp16" and "bf16" are autocast, "fp16" with a GradScaler. checkpointing: of every block.
    """

    card: str = "RTX 3090"
    batch: int = 4
    seq_len: int = 512
    pages: int = 5
    depth: int = 9
    width: int = 1792
    heads: int = 28
    fusion: str = "concat"
    precision: str = "fp32"
    checkpointing: bool = False
    accumulation: int = 1
    attention: str = "eager"
    optimizer: str = "AdamW"

    def __post_init__(self):
        find_card(self.card)
        for name in ("batch", "width", "accumulation"):
            check_whole_number(name, getattr(self, name))
        if self.width % 7:
            raise ValueError(f"width must be a multiple of 7 (3/7 from ViT, 4/7 from T5), got {self.width}.")
        for name, allowed in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"Unknown {name} {getattr(self, name)!r}. Use one of: {', '.join(allowed)}.")
        if not isinstance(self.checkpointing, bool):
            raise TypeError(f"checkpointing must be True or False, got {self.checkpointing!r}.")
        if self.accumulation > self.batch:
            raise ValueError(f"A batch of {self.batch} cannot be cut into {self.accumulation} micro-batches. "
                             f"Use a larger batch, or an accumulation of at most {self.batch}.")
        _ = self.config  # which checks the rest

    @property
    def config(self) -> FusionConfig:
        return FusionConfig(pages=self.pages, seq_len=self.seq_len, vit_dim=3 * self.width // 7,
                            t5_dim=4 * self.width // 7, depth=self.depth, heads=self.heads, fusion=self.fusion,
                            attention=self.attention)

    def __str__(self) -> str:
        extra = ["checkpointing"] * self.checkpointing
        extra += [f"{self.accumulation} micro-batches"] * (self.accumulation > 1)
        return ", ".join([
            f"batch {self.batch} × {self.pages} pages × {self.seq_len} tokens",
            f"{self.depth} blocks of {self.config.width}", f"{self.config.n_heads} heads", self.fusion, self.precision,
            f"{self.attention} attention", self.optimizer, *extra])


class CheckpointedTransformer(FusionTransformer):
    """The reference model with every block checkpointed."""

    def run_blocks(self, h):
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return h


def training_function(choices: Choices):
    """`train(device, batch_size)` of these choices: ordinary PyTorch, two optimizer steps."""
    config, precision = choices.config, PRECISIONS[choices.precision]
    make_optimizer, options = OPTIMIZERS[choices.optimizer]

    def train(device, batch_size):
        model = (CheckpointedTransformer if choices.checkpointing else FusionTransformer)(config).to(device)
        optimizer = make_optimizer(model.parameters(), **options)
        scaler = torch.amp.GradScaler(device.type, enabled=choices.precision == "fp16")
        batch = make_batch(config, batch_size, device)
        parts = [tensor.tensor_split(min(choices.accumulation, batch_size)) for tensor in batch.values()]
        for _ in range(2):
            for part in zip(*parts, strict=True):
                micro_batch = dict(zip(batch, part, strict=True))
                with torch.autocast(device.type, dtype=precision, enabled=choices.precision != "fp32"):
                    loss = model(**micro_batch).loss
                if len(part[0]) < batch_size:
                    loss = loss * (len(part[0]) / batch_size)  # a document counts as much as in the whole batch
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train


def make_choices(**choices) -> Choices:
    """`Choices`; TypeError, one sentence, for a name that it does not have."""
    names = [field.name for field in dataclasses.fields(Choices)]
    unknown = [name for name in choices if name not in names]
    if unknown:
        raise TypeError(f"There is no choice {unknown[0]!r}. There are: {', '.join(names)}.")
    return Choices(**choices)
