"""Cases of gradient accumulation and of several processes, as people reported them (sources: test_cases.py)."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

LENGTHS = (16, 2, 14, 3, 16, 1, 12, 4)  # tokens of eight sequences that count; the rest is padding
WORDS = 30


def flat_gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def relative(one, other) -> float:
    return ((one - other).norm() / other.norm()).item()


def token_gradient(loss_of, size=8, lengths=LENGTHS):
    """The gradient of a small language model over eight sequences in parts of `size`; loss_of(logits, targets)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, WORDS))
    words, targets = torch.randint(WORDS, (2, 8, 16)).unbind()
    targets = targets.masked_fill(torch.arange(16) >= torch.tensor(lengths)[:, None], -100)
    for start in range(0, 8, size):
        part = slice(start, start + size)
        loss_of(model(words[part]).flatten(0, 1), targets[part].flatten()).backward()
    return flat_gradient(model)


def test_G1_a_mean_of_means_is_not_the_mean_over_tokens():
    whole, tokens = token_gradient(F.cross_entropy), sum(LENGTHS)

    def summed(*both):
        return F.cross_entropy(*both, reduction="sum") / tokens

    assert relative(token_gradient(summed, size=1), whole) < 1e-5
    assert relative(token_gradient(lambda *both: F.cross_entropy(*both) / 8, size=1), whole) > 0.5
    assert relative(token_gradient(lambda *both: F.cross_entropy(*both) / 4, size=2), whole) > 0.01
    undivided = token_gradient(F.cross_entropy, size=1, lengths=[16] * 8)
    twice_divided = token_gradient(lambda *both: summed(*both) / 8, size=1)
    assert (twice_divided.norm() / whole.norm()).item() == pytest.approx(1 / 8, rel=1e-4)
    equal = token_gradient(F.cross_entropy, lengths=[16] * 8)
    assert (undivided.norm() / equal.norm()).item() == pytest.approx(8, rel=1e-4)
    assert relative(token_gradient(lambda *both: F.cross_entropy(*both) / 8, 1, [16] * 8), equal) < 1e-5
    nothing = torch.zeros(4, WORDS), torch.full((4,), -100)  # a part in which no token counts
    assert F.cross_entropy(*nothing).isnan() and F.cross_entropy(*nothing, reduction="sum") == 0


def test_G4_clipping_every_part_turns_the_gradient():
    weight, parts = nn.Parameter(torch.zeros(2)), torch.tensor([[2.0, 0.0], [0.0, 2.0]])

    def accumulated(clip_each):
        weight.grad = None
        for part in parts:
            (weight * part).sum().backward()
            if clip_each:
                nn.utils.clip_grad_norm_([weight], 1.0)
        nn.utils.clip_grad_norm_([weight], 1.0)
        return weight.grad.clone()

    once, each = accumulated(False), accumulated(True)
    assert once.norm().item() == pytest.approx(1, abs=1e-5) == each.norm().item()  # the norm does not show it
    angle = torch.rad2deg(torch.arccos(once @ each / once.norm() / each.norm())).item()
    assert angle == pytest.approx(18.4, abs=0.1)


@pytest.mark.parametrize(("norm", "exact"), [(nn.LayerNorm, True), (nn.BatchNorm1d, False)])
def test_G6_batchnorm_sees_the_part_and_layernorm_the_example(norm, exact):
    torch.manual_seed(0)
    data = torch.randn(8, 3) * 3 + 1
    model = nn.Sequential(nn.Linear(3, 4), norm(4), nn.Tanh(), nn.Linear(4, 1))
    model(data).square().mean().backward()
    whole = flat_gradient(model)
    model.zero_grad()
    for part in data.chunk(4):
        (model(part).square().mean() / 4).backward()
    gap = relative(flat_gradient(model), whole)
    assert gap < 1e-5 if exact else gap > 0.05
    if not exact:
        assert model[1].num_batches_tracked == 1 + 4


@pytest.fixture(scope="module")
def one_process():
    """A process group of one, without a network."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("mode", ["every part", "no_sync", "forward outside"])
def test_G7_no_sync_saves_reductions_when_forward_is_inside(one_process, mode):
    """In part: what FSDP's no_sync keeps takes more than one process to show."""
    torch.manual_seed(0)
    model, data, reductions = nn.Linear(8, 8), torch.randn(4, 4, 8), []
    model(data.flatten(0, 1)).square().mean().backward()
    whole = flat_gradient(model)
    model.zero_grad()
    parallel = DistributedDataParallel(model)

    def reduce(state, bucket):
        reductions.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    parallel.register_comm_hook(None, reduce)
    for number, part in enumerate(data):
        inside = parallel.no_sync() if mode != "every part" and number < 3 else contextlib.nullcontext()
        early = parallel(part) if mode == "forward outside" else None
        with inside:
            y = parallel(part) if early is None else early
            (y.square().mean() / 4).backward()
    assert len(reductions) == (1 if mode == "no_sync" else 4)
    assert relative(flat_gradient(model), whole) < 1e-5


class Wrapped(nn.Module):
    """A block behind a checkpoint, called once or twice."""

    def __init__(self, use_reentrant, calls):
        super().__init__()
        self.first, self.block, self.use_reentrant, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), use_reentrant, calls

    def forward(self, x):
        h = self.first(x)
        for _ in range(self.calls):
            h = checkpoint(self.block, h, use_reentrant=self.use_reentrant)
        return h


@pytest.mark.parametrize(("use_reentrant", "calls", "options", "works"), [
    (True, 1, {}, True), (True, 1, {"find_unused_parameters": True}, False), (True, 2, {}, False),
    (True, 2, {"static_graph": True}, True),
    (False, 1, {"find_unused_parameters": True}, True), (False, 2, {}, True)])
def test_C8_the_reentrant_kind_marks_a_variable_twice(one_process, use_reentrant, calls, options, works):
    model = DistributedDataParallel(Wrapped(use_reentrant, calls), **options)
    problem = contextlib.nullcontext() if works else pytest.raises(RuntimeError, match="only once")
    with problem:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
