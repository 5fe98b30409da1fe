"""The reference model: a Transformer that answers questions about documents from fused ViT and T5 features."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FUSIONS = ("concat", "project-features", "project-tokens", "project-add")
ATTENTIONS = ("eager", "sdpa")
HEAD_WIDTH, PROJECTED = 64, 512


@dataclasses.dataclass(frozen=True)
class FusionConfig:
    """Sizes of the model. `heads` counts for "concat"; a narrower fusion keeps heads of the same width."""

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
        if self.fusion not in FUSIONS:
            raise ValueError(f"Unknown fusion {self.fusion!r}. Use one of {', '.join(FUSIONS)}.")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"Unknown attention {self.attention!r}. Use one of {', '.join(ATTENTIONS)}.")

    @property
    def width(self) -> int:
        """Width of a token inside the Transformer."""
        widths = {"concat": self.vit_dim + self.t5_dim, "project-features": 2 * PROJECTED}
        return widths.get(self.fusion, PROJECTED)

    @property
    def n_heads(self) -> int:
        return self.heads if self.fusion == "concat" else self.width // HEAD_WIDTH

    @property
    def tokens(self) -> int:
        """Tokens of one page inside the Transformer."""
        return 2 * self.seq_len if self.fusion == "project-tokens" else self.seq_len


class Output(NamedTuple):
    loss: Tensor
    logits: Tensor


class Fusion(nn.Module):
    """Joins one ViT feature a page with the page's T5 features."""

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.kind = config.fusion
        if self.kind != "concat":
            self.vit, self.t5 = nn.Linear(config.vit_dim, PROJECTED), nn.Linear(config.t5_dim, PROJECTED)

    def forward(self, vit: Tensor, t5: Tensor) -> Tensor:
        page = vit[:, None].expand(-1, t5.shape[1], -1)  # (N, T, 768): one page feature beside every token, no copy
        if self.kind == "concat":
            return torch.cat([page, t5], dim=-1)  # (N, T, 1792)
        page, t5 = self.vit(page), self.t5(t5)  # (N, T, 512) each
        if self.kind == "project-add":
            return page + t5  # (N, T, 512)
        return torch.cat([page, t5], dim=-1 if self.kind == "project-features" else 1)  # (N, T, 1024) or (N, 2T, 512)


class Attention(nn.Module):
    def __init__(self, config: FusionConfig):
        super().__init__()
        self.heads, self.dropout, self.kind = config.n_heads, config.dropout, config.attention
        self.qkv, self.out = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (N, H, T, 64) each
        p = self.dropout if self.training else 0.0
        if self.kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        else:
            weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)  # (N, H, T, T)
            y = F.dropout(weights, self.dropout, self.training) @ v  # (N, H, T, 64)
        return self.out(y.transpose(1, 2).reshape(n, t, width))


class FeedForward(nn.Module):
    def __init__(self, config: FusionConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.ffn_multiple * config.width)
        self.down = nn.Linear(config.ffn_multiple * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # (N, T, 4 x width) in between


class Block(nn.Module):
    def __init__(self, config: FusionConfig):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(config.width), Attention(config)
        self.norm2, self.ffn = nn.LayerNorm(config.width), FeedForward(config)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.ffn(self.norm2(x)), self.dropout, self.training)


class FusionTransformer(nn.Module):
    """`loss, logits = model(vit=[B, pages, 768], t5=[B, pages, T, 1024], answer=[B])`."""

    def __init__(self, config: FusionConfig):
        super().__init__()
        self.config, self.fusion = config, Fusion(config)
        self.position = nn.Parameter(torch.zeros(config.tokens, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.answers)

    def run_blocks(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h)
        return h

    def forward(self, vit: Tensor, t5: Tensor, answer: Tensor) -> Output:
        batch, pages = vit.shape[:2]
        h = self.fusion(vit.flatten(0, 1), t5.flatten(0, 1)) + self.position  # (B x pages, T, width)
        h = self.norm(self.run_blocks(h))[:, 0].view(batch, pages, -1).mean(1)  # (B, width)
        logits = self.head(h)  # (B, answers)
        return Output(F.cross_entropy(logits, answer), logits)
