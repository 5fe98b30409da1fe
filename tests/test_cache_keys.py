"""The short cache keys of the simulation change how long it takes and nothing else."""

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from helpers.card import open_card
from helpers.choices import Choices, training_function
from helpers.simulation.cache_keys import ShortCacheKeys, is_simple
from helpers.simulation.sim_device import simulation

SMALL = Choices(batch=2, depth=2, seq_len=64, width=448, heads=7)
KINDS = [{}, {"precision": "fp16", "checkpointing": True}, {"attention": "sdpa", "precision": "bf16"},
         {"accumulation": 2, "optimizer": "AdamW fused"},
         {"fusion": "project-tokens", "optimizer": "AdamW foreach=False"}]


def run(changes):
    FakeTensorMode.cache_clear()
    choices = dataclasses.replace(SMALL, **changes)
    return open_card(kind="simulated").run(training_function(choices), choices.batch)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_the_same_run_as_with_pytorchs_own_keys(changes, monkeypatch):
    short = run(changes)
    monkeypatch.delattr(ShortCacheKeys, "_prep_args_for_hash")
    own = run(changes)
    assert short.timeline == own.timeline and short.live_at_peak == own.live_at_peak
    assert (short.peak_reserved, short.flops, short.estimated_seconds) == (
        own.peak_reserved, own.flops, own.estimated_seconds)


def test_every_hit_is_what_pytorch_would_have_computed():
    """PyTorch can check its cache: it computes each answer again and compares."""
    FakeTensorMode.cache_clear()
    before = FakeTensorMode.cache_hits
    with simulation() as mode:
        if not hasattr(mode, "cache_crosscheck_enabled"):
            pytest.skip("this PyTorch cannot check its cache")
        mode.cache_crosscheck_enabled = True
        training_function(dataclasses.replace(SMALL, precision="fp16"))(torch.device("sim"), 2)
    assert FakeTensorMode.cache_hits > before + 200


def test_what_tells_tensors_apart():
    """Equal numbers of another type, other strides, dtypes and offsets have other keys."""
    with simulation() as mode:
        x = torch.zeros(4, 4, device="sim")
        assert type(x) is FakeTensor and is_simple(x, mode)
        different = [(x, 1), (x, 1.0), (x, True), (x.T, 1), (x.half(), 1), (x[1:], 1), (x[:3], 1), ([x], 1), (x, (1,)),
                     (x, [1]), (x.clone().requires_grad_(), 1), (torch.zeros(4, 4), 1), (x, torch.float16), (x, None)]
        keys = [key_of(mode, arguments) for arguments in different]
        assert len(set(keys)) == len(keys)
        assert key_of(mode, (torch.ones(4, 4, device="sim"), 1)) == keys[0]


def key_of(mode, arguments):
    from torch._subclasses.fake_tensor import _CacheKeyState

    found = []
    mode._prep_args_for_hash(found, arguments, _CacheKeyState(None), [])
    return tuple(found)
