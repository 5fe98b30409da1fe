"""What makes FakeTensors quicker changes how long a simulation takes and nothing else."""

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from helpers.cards.opening import open_card
from helpers.planner.choices import Choices, training_function
from helpers.simulation.fake_tensors.fast_mode import QuickFakeTensorMode
from helpers.simulation.session import simulation

SMALL = Choices(batch=2, depth=2, seq_len=64, width=448, heads=7)
KINDS = [{}, {"precision": "fp16", "checkpointing": True}, {"attention": "sdpa", "precision": "bf16"},
         {"accumulation": 2, "optimizer": "AdamW fused"},
         {"fusion": "project-tokens", "optimizer": "AdamW foreach=False"}]


def run(changes):
    FakeTensorMode.cache_clear()
    choices = dataclasses.replace(SMALL, **changes)
    return open_card(kind="simulated").run(training_function(choices), choices.batch)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_the_same_run_as_with_pytorchs_own_mode(changes, monkeypatch):
    quick = run(changes)
    for name in ("__torch_dispatch__", "_prep_args_for_hash", "_get_output_tensor_from_cache_entry"):
        monkeypatch.delattr(QuickFakeTensorMode, name)
    own = run(changes)
    assert quick.timeline == own.timeline and quick.live_at_peak == own.live_at_peak
    assert (quick.peak_reserved, quick.flops, quick.estimated_seconds) == (
        own.peak_reserved, own.flops, own.estimated_seconds)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_every_answer_from_memory_is_what_pytorch_computes(changes, monkeypatch):
    """PyTorch can check such an answer: it computes it again and compares."""
    kwargs_of, checked = [], []
    dispatch, answer = QuickFakeTensorMode.__torch_dispatch__, FakeTensorMode._output_from_cache_entry

    def remember_kwargs(mode, func, types, args=(), kwargs=None):
        kwargs_of.append(kwargs or {})
        return dispatch(mode, func, types, args, kwargs)

    def check(mode, state, entry, key, func, args):
        out = answer(mode, state, entry, key, func, args)
        if key is None:  # from the short memory
            mode._crosscheck_cache_output(out, func, (), args, kwargs_of[-1])
            checked.append(func)
        return out

    monkeypatch.setattr(QuickFakeTensorMode, "__torch_dispatch__", remember_kwargs)
    monkeypatch.setattr(FakeTensorMode, "_output_from_cache_entry", check)
    run(changes)
    assert len(checked) > 500


def test_a_made_fake_has_all_that_pytorchs_own_has():
    with simulation() as mode:
        empty = torch.empty(2, 3, device="meta", dtype=torch.float16)
        ours, own = mode.make_fake(empty, torch.device("sim:0")), FakeTensor(mode, empty, torch.device("sim:0"))
        assert type(ours) is type(own) and vars(ours) == vars(own)
        assert (ours.device, ours.shape, ours.dtype) == (own.device, own.shape, own.dtype)
        assert ours.untyped_storage()._cdata == own.untyped_storage()._cdata


def test_what_tells_arguments_apart():
    """Equal numbers of another type, other strides, dtypes and offsets have other keys."""
    with simulation() as mode:
        x = torch.zeros(4, 4, device="sim")
        different = [(x, 1), (x, 1.0), (x, True), (x.T, 1), (x.half(), 1), (x[1:], 1), (x[:3], 1), ([x], 1), (x, (1,)),
                     (x, [1]), (x.clone().requires_grad_(), 1), (torch.zeros(4, 4), 1), (x, torch.float16), (x, None)]
        keys = [mode.short_key(torch.ops.aten.add.Tensor, arguments, {}) for arguments in different]
        assert None not in keys and len(set(keys)) == len(keys)
        assert mode.short_key(torch.ops.aten.add.Tensor, (torch.ones(4, 4, device="sim"), 1), None) == keys[0]
        assert mode.short_key(torch.ops.aten.mul.Tensor, (x, 1), {}) != keys[0]
        assert mode.short_key(torch.ops.aten.add.Tensor, (x, 1), {"alpha": 2}) != keys[0]


def test_what_is_not_simple_goes_through_the_mode():
    with simulation() as mode, torch.sparse.check_sparse_tensor_invariants(False):
        sparse = torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.long), torch.zeros(2), (4,))
        assert mode.short_key(torch.ops.aten.neg.default, (sparse,), {}) is None
        assert mode.short_key(torch.ops.aten.neg.default, (object(),), {}) is None
        assert mode.short_key(torch.ops.aten.neg.default, (torch.tensor(2.0),), {}) is None  # its value is known
