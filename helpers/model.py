"""The reference model: a Transformer that answers questions about documents from frozen page and text features.

A document has `pages` pages. A page is one ViT feature [vit_dim], repeated along `seq_len` T5 features [t5_dim]. Pages
go through the Transformer as separate sequences: a batch of 4 documents is 20 sequences, and every activation has
that size.
"""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from helpers.units import GiB, check_whole_number

FUSIONS = ("concat", "project-features", "project-tokens", "project-add")
ATTENTIONS = ("eager", "sdpa")


@dataclasses.dataclass(frozen=True)
class FusionConfig:
    """The sizes of the reference model; the defaults are the model of the series, 362.6 million parameters.

    fusion: how a page joins its text. "concat": side by side, as they are. The others first project both to `projected`
    features, then join them on the feature axis, on the sequence axis, or add them. heads: attention heads with
    "concat"; a narrower model has fewer heads of the same width. attention: "eager" writes out
    [batch x pages, heads, tokens, tokens], "sdpa" calls PyTorch's fused attention. Raises TypeError or ValueError with
    one sentence for a value that cannot be.
    """

    pages: int = 5
    seq_len: int = 512
    vit_dim: int = 768
    t5_dim: int = 1024
    depth: int = 9
    heads: int = 28
    ffn_multiple: int = 4
    answers: int = 8192
    dropout: float = 0.1
    fusion: str = "concat"
    attention: str = "eager"

    def __post_init__(self):
        for name in ("pages", "seq_len", "vit_dim", "t5_dim", "depth", "heads", "ffn_multiple", "answers"):
            check_whole_number(name, getattr(self, name))
        if not isinstance(self.dropout, (int, float)):
            raise TypeError(f"dropout must be a number, got {self.dropout!r}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout!r}.")
        if self.fusion not in FUSIONS:
            raise ValueError(f"Unknown fusion {self.fusion!r}. Use one of: {', '.join(FUSIONS)}.")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"Unknown attention {self.attention!r}. Use one of: {', '.join(ATTENTIONS)}.")
        if self.fusion != "concat" and self.t5_dim < 2:
            raise ValueError(f"t5_dim must be at least 2 to project to half of it, got {self.t5_dim}.")
        joined = self.vit_dim + self.t5_dim
        if joined % self.heads:
            raise ValueError(f"The joined width {joined} (vit_dim + t5_dim) cannot be divided into {self.heads} heads.")
        if self.width % self.head_width:
            raise ValueError(f"With fusion {self.fusion!r} the width {self.width} cannot be divided into heads of "
                             f"{self.head_width} features (vit_dim + t5_dim, divided by heads).")

    @property
    def projected(self) -> int:
        """Features of each side after the projection: half of T5's, 512 in the reference model."""
        return self.t5_dim // 2

    @property
    def width(self) -> int:
        """Features of a token inside the Transformer: 1792, 1024, 512 or 512."""
        return {"concat": self.vit_dim + self.t5_dim, "project-features": 2 * self.projected,
                "project-tokens": self.projected, "project-add": self.projected}[self.fusion]

    @property
    def tokens(self) -> int:
        """Length of a sequence inside the Transformer: joining on the sequence axis doubles it."""
        return 2 * self.seq_len if self.fusion == "project-tokens" else self.seq_len

    @property
    def head_width(self) -> int:
        """Features of one attention head, the same for every fusion: 64 in the reference model."""
        return (self.vit_dim + self.t5_dim) // self.heads

    @property
    def n_heads(self) -> int:
        """Attention heads at this width: 28, 16, 8 or 8."""
        return self.width // self.head_width

    @classmethod
    def tiny(cls) -> "FusionConfig":
        """The reference model's proportions at a thirty-second of its width: trains for real on a CPU in seconds."""
        return cls(pages=3, seq_len=8, vit_dim=24, t5_dim=32, depth=2, heads=7, answers=16)

    @classmethod
    def for_card(cls, capacity: int) -> "FusionConfig":
        """The reference model with fewer blocks on a smaller card, so that batch 2 trains and batch 4 does not.

        capacity: bytes that PyTorch may use; from 17 GiB on the answer is the reference model. Width and sequence
        stay, so the tensors of a block keep their size. In float32 with AdamW, batch 2 reserves about 1.6 GiB a block
        and 1.15 GiB besides; with 7 % to spare that is 1.75 and 1.25. Two blocks are too few and three too many between
        5.5 and 6.5 GiB: there a document has 4 pages. Batch 4 needs at least 7 % more than the card has, up to the
        reference capacity of 22.5 GiB. Raises ValueError below 4.75 GiB.
        """
        if not isinstance(capacity, (int, float)) or isinstance(capacity, bool):
            raise TypeError(f"capacity must be a number of bytes, got {capacity!r}.")
        gib = capacity / GiB
        if gib < 4.75:
            raise ValueError("The reference model needs a card with at least 4.75 GiB for PyTorch, "
                             f"got {capacity} bytes ({gib:.2f} GiB).")
        if 5.5 <= gib < 6.5:
            return cls(depth=3, pages=4)
        return cls(depth=min(cls.depth, int((gib - 1.25) / 1.75)))


class Fusion(nn.Module):
    """Joins one page feature with the features of the page's text."""

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.how = config.fusion
        if self.how != "concat":
            self.vit = nn.Linear(config.vit_dim, config.projected)
            self.t5 = nn.Linear(config.t5_dim, config.projected)

    def forward(self, vit, t5):
        page = vit[:, None].expand(-1, t5.shape[1], -1)  # (N, 768) -> (N, 512, 768), a view
        if self.how == "concat":
            return torch.cat([page, t5], dim=2)  # (N, 512, 1792)
        page, text = self.vit(page), self.t5(t5)  # (N, 512, 512) each
        if self.how == "project-features":
            return torch.cat([page, text], dim=2)  # (N, 512, 1024)
        if self.how == "project-tokens":
            return torch.cat([page, text], dim=1)  # (N, 1024, 512)
        return page + text  # (N, 512, 512)


class Attention(nn.Module):
    """Multi-head self-attention over the tokens of one page."""

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.heads, self.dropout, self.fused = config.n_heads, config.dropout, config.attention == "sdpa"
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        n, tokens, width = x.shape
        qkv = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (N, heads, tokens, 64) each, views of one tensor
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        else:
            # (N, heads, tokens, tokens) four times over: product, scaled, softmax, dropout. None gets a name: a name
            # would keep it in memory until this function returns.
            scale = math.sqrt(width // self.heads)
            y = F.dropout((q @ k.transpose(-1, -2) / scale).softmax(-1), self.dropout, self.training) @ v
        return self.out(y.transpose(1, 2).reshape(n, tokens, width))  # (N, tokens, width)


class FeedForward(nn.Module):
    """Two Linear layers over each token, four times as wide between them."""

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_multiple * config.width)
        self.down = nn.Linear(config.ffn_multiple * config.width, config.width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))  # (N, tokens, width) -> (N, tokens, 4 width) -> (N, tokens, width)


class Block(nn.Module):
    """One pre-norm Transformer block; keeps the shape (N, tokens, width)."""

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.dropout = config.dropout

    def forward(self, x):
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.feed_forward(self.norm2(x)), self.dropout, self.training)


class Output(NamedTuple):
    """loss: a scalar, None without an answer; logits: [B, answers]."""

    loss: torch.Tensor | None
    logits: torch.Tensor


class FusionTransformer(nn.Module):
    """The reference model. `loss, logits = model(**batch)` with a batch of `make_batch`.

    vit: [B, pages, vit_dim], t5: [B, pages, seq_len, t5_dim], answer: [B] of int64, or None. To change how blocks run
    (checkpointing, offloading), subclass and override `run_blocks`.
    """

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.fusion = Fusion(config)
        self.position = nn.Parameter(torch.zeros(config.tokens, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.answers)

    def run_blocks(self, h):
        """All blocks in turn; h: [B x pages, tokens, width] in and out."""
        for block in self.blocks:
            h = block(h)
        return h

    def forward(self, vit, t5, answer=None) -> Output:
        batch, pages = vit.shape[:2]
        h = self.fusion(vit.flatten(0, 1), t5.flatten(0, 1))  # (N, tokens, width), N = B x pages
        h = self.run_blocks(h + self.position)
        first = self.norm(h)[:, 0]  # (N, width): the first token of each page
        document = first.view(batch, pages, -1).mean(1)  # (B, width)
        logits = self.head(document)  # (B, answers)
        return Output(None if answer is None else F.cross_entropy(logits, answer), logits)


def parameter_count(config: FusionConfig) -> int:
    """Parameters of the reference model, counted by hand from its shapes."""

    def linear(inputs, outputs):
        return inputs * outputs + outputs

    width, hidden, norm = config.width, config.ffn_multiple * config.width, 2 * config.width
    block = 2 * norm + linear(width, 3 * width) + linear(width, width) + linear(width, hidden) + linear(hidden, width)
    fusion = linear(config.vit_dim, config.projected) + linear(config.t5_dim, config.projected)
    ends = config.tokens * width + norm + linear(width, config.answers)  # position, final norm, head
    return config.depth * block + ends + (fusion if config.fusion != "concat" else 0)
