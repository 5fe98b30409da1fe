"""Small networks, each trained for two steps: what CUDA's dispatch and the simulated device must agree on."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH, LENGTH = 64, 4, 24
HALF = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


class RMSNorm(nn.Module):
    """As in T5: mean of squares in float32, scaled by a reciprocal square root."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x


class Attention(nn.Module):
    """kind: "eager", "einsum", "sdpa", "causal" or "masked"."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.qkv, self.out = kind, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        if self.kind == "eager":
            scores = (q @ k.transpose(-1, -2)) / 4
            y = F.dropout(scores.softmax(-1), 0.1) @ v
        elif self.kind == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", q, k)
            y = torch.einsum("bhij,bhjd->bhid", F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype), v)
        elif self.kind == "masked":
            mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=self.kind == "causal")
        return self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class Checkpointed(nn.Module):
    def __init__(self, module, use_reentrant):
        super().__init__()
        self.module, self.use_reentrant = module, use_reentrant

    def forward(self, x):
        x = x.requires_grad_() if x.is_leaf else x
        return checkpoint(self.module, x, use_reentrant=self.use_reentrant)


class SelfAttention(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True), need_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class NoAutocast(nn.Module):
    """A layer that the writer keeps in float32."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.layer(x.float())


class TwiceTheWeight(nn.Module):
    """One weight used twice: cast once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(F.relu(self.layer(x)))


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))


def vectors(device):
    return torch.randn(BATCH, LENGTH, WIDTH, device=device)


def images(device):
    return torch.randn(BATCH, 3, 16, 16, device=device)


def tokens(device):
    return torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device)


# name: how to build it, how to make its input
NETWORKS = {
    "mlp": (mlp, vectors),
    "layer norm": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.SiLU()), vectors),
    "T5 norm": (lambda: nn.Sequential(RMSNorm(), nn.Linear(WIDTH, WIDTH, bias=False), RMSNorm()), vectors),
    "rms norm": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.RMSNorm(WIDTH)), vectors),
    **{f"{kind} attention": (lambda kind=kind: Attention(kind), vectors)
       for kind in ("eager", "einsum", "sdpa", "causal", "masked")},
    "multi-head attention": (lambda: SelfAttention(False), vectors),
    "multi-head attention with weights": (lambda: SelfAttention(True), vectors),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True), vectors),
    "decoder layer": (lambda: Decoder(), vectors),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1),
                                           nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU(),
                                           nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, bias=False), nn.GroupNorm(4, 16),
                                           nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, WIDTH)), images),
    "embedding": (lambda: nn.Sequential(nn.Embedding(100, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()), tokens),
    "checkpointed": (lambda: Checkpointed(mlp(), False), vectors),
    "checkpointed, reentrant": (lambda: Checkpointed(mlp(), True), vectors),
    "one layer in float32": (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), NoAutocast(), nn.Linear(WIDTH, WIDTH)),
                             vectors),
    "one weight used twice": (TwiceTheWeight, vectors),
}
OPTIMIZERS = {
    "AdamW": torch.optim.AdamW, "Adam with weight decay": lambda p: torch.optim.Adam(p, weight_decay=0.1),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True), "Adam fused": lambda p: torch.optim.Adam(p, fused=True),
    "AdamW loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1), "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "NAdam": torch.optim.NAdam, "RAdam": torch.optim.RAdam, "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor, "RMSprop": torch.optim.RMSprop, "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=x.device)
        return self.layer(x, x, tgt_mask=mask, tgt_is_causal=True)


def train(device, network, make_input, optimizer=torch.optim.AdamW, dtype=None, cache=True, classes=10):
    """Two steps with clipping; a GradScaler for float16. Cross entropy on the first classes of the mean token."""
    with device:
        model = network()
    optimizer = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    target = torch.zeros(BATCH, dtype=torch.long, device=device)
    for _ in range(2):
        x = make_input(device)
        with torch.autocast(device.type, dtype=dtype, cache_enabled=cache) if dtype else contextlib.nullcontext():
            out = model(x)
            out = out if out.dim() == 2 else out.mean(1)
            loss = F.cross_entropy(out[:, :classes], target) + 0.1 * out.square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def cases():
    """Name and function of the device."""
    for name, (network, make_input) in NETWORKS.items():
        for dtype_name, dtype in HALF.items():
            yield (f"{name}, {dtype_name}",
                   lambda device, a=(network, make_input, torch.optim.AdamW, dtype): train(device, *a))
    for name, optimizer in OPTIMIZERS.items():
        for dtype_name in ("float32", "float16"):
            yield (f"{name}, {dtype_name}",
                   lambda device, a=(mlp, vectors, optimizer, HALF[dtype_name]): train(device, *a))
    yield "no cache of weights, float16", lambda device: train(
        device, TwiceTheWeight, vectors, dtype=torch.float16, cache=False)
