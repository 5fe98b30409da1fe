"""What notebook 09 says about the parts of the simulation, MemTracker and recorded traces."""

import json
import os
import pathlib

import pytest
import torch

from helpers import MiB, open_card
from helpers.cards.simulated_card import KNOWN_PARTS
from tests.cuda_dispatch.rungs import RUNGS, training_function
from tests.notebooks.notebook_cells import run_cells
from tests.simulation.allocator.replayed_traces import counts

DATA = pathlib.Path(__file__).parents[1] / "data"
JUDGE = json.loads((DATA / "cuda_dispatch_rungs.json").read_text())["peaks"]


def run_without(parts, rung):
    card = open_card("A100 80GB", kind="simulated", leave_out=parts)
    return card.run(training_function(**RUNGS[rung]), 4)


def change(parts, rung, what):
    """Relative change of the peak ("allocated" or "reserved") when `parts` are left out."""
    return getattr(run_without(parts, rung), f"peak_{what}") / JUDGE[rung][what] - 1


@pytest.mark.parametrize(("part", "rung", "what", "low", "high"), [
    ("workspaces", "amp fp16 + sdpa", "allocated", -0.003, -0.0005),
    ("rounding", "amp fp16 + sdpa", "allocated", -0.01, -0.002),
    ("caching", "amp fp16", "reserved", -0.10, -0.05),
    ("in-place writes", "amp fp16", "reserved", -0.05, -0.01),
    ("foreach", "amp fp16 + checkpointing + sdpa", "allocated", -0.10, -0.06),
    ("autocast lists", "amp fp16", "allocated", -0.16, -0.11),
    ("attention kernels", "amp fp16 + sdpa", "allocated", 1.0, 1.2),
    ("dropout masks", "baseline", "allocated", 0.16, 0.19)])
def test_what_a_part_is_worth(part, rung, what, low, high):
    assert low < change((part,), rung, what) < high


def test_errors_cancel_when_every_part_is_left_out():
    """Of opposite signs: on this rung dropout masks alone are further off than all eight together."""
    together = change(tuple(KNOWN_PARTS), "amp fp16", "allocated")
    assert -0.08 < together < -0.05
    assert change(("dropout masks",), "amp fp16", "allocated") > abs(together)
    assert len(KNOWN_PARTS) == 8


def test_without_caching_what_is_reserved_is_what_is_allocated():
    run = run_without(("caching", "rounding"), "project-add")
    assert run.peak_reserved == run.peak_allocated and run.left_behind == 0


@pytest.mark.parametrize(("leave_out", "message"), [(("dropout",), "Known parts: attention kernels"),
                                                    (("caching",), "without expandable_segments")])
def test_what_cannot_be_left_out_is_one_sentence(leave_out, message):
    with pytest.raises(ValueError, match=message):
        open_card(kind="simulated", leave_out=leave_out, expandable_segments=True)


TABLE = 2**20 * 256 * 4  # bytes


def used_twice(table, ids):
    return (table * 2).sum() + (table * 3).sum()


def gather(table, ids):
    return table.gather(0, ids[:, None]).sum()


def index(table, ids):
    return table[ids].sum()


@pytest.mark.parametrize(("loss", "tables"), [(used_twice, 3), (gather, 2), (index, 2)])
def test_backward_writes_in_place_where_it_can(loss, tables):
    """An accumulated gradient (add), a gather (scatter_add) and an indexing (index_put) take no second tensor."""
    def backward(device, batch_size):
        table = torch.randn(2**20, 256, device=device, requires_grad=True)
        loss(table, torch.randint(2**20, (batch_size,), device=device)).backward()
        assert table.grad is not None

    peaks = [open_card("A100 80GB", kind="simulated", leave_out=parts).run(backward, 8, expect_gradients=False)
             for parts in ((), ("in-place writes",))]
    assert [round(run.peak_allocated / TABLE, 3) for run in peaks] == [tables, tables + 1]


def test_backward_leaves_alone_what_somebody_else_holds():
    """A gradient that a hook keeps cannot be written into: the sum with another one needs a tensor of its own."""
    def backward_that_keeps(keep):
        def backward(device, batch_size):
            kept = []
            table = torch.randn(2**20, 256, device=device, requires_grad=True)
            losses = []
            for factor in (2, 3):
                product = table * factor
                product.grad_fn.register_hook(lambda grads, _: kept.extend(grads) if keep else None)
                losses.append(product.sum())
                del product
            sum(losses).backward()
        return backward

    card = open_card("A100 80GB", kind="simulated")
    peaks = [card.run(backward_that_keeps(keep), 8, expect_gradients=False).peak_allocated for keep in (False, True)]
    assert [round(peak / TABLE, 3) for peak in peaks] == [3, 4]


def test_memtracker_counts_the_dropout_of_the_cpu():
    tracked = run_cells("09_how_exact", "setup", "memtracker-fakes")["tracked"]
    assert 0.16 < tracked / JUDGE["baseline"]["allocated"] - 1 < 0.19
    assert run_without(("dropout masks",), "baseline").peak_allocated == pytest.approx(tracked, rel=0.005)


def test_exercise_1_and_3():
    code = run_cells("09_how_exact", "setup", "attention", "attention-measure",
                     "exercise-1", "solution-1", "exercise-3", "solution-3")
    assert code["before"] - code["after"] == pytest.approx(2048, rel=0.01)
    fused = torch.nn.functional.scaled_dot_product_attention
    for with_heads, good in ((False, False), (True, True)):
        def attend(*qkv, with_heads=with_heads):
            return fused(*(x.unsqueeze(1) for x in qkv)).squeeze(1) if with_heads else fused(*qkv)

        assert (code["attention_peaks"](code["large"], 64, 8192, attend)[3] < 16497.8 / 10) == good


def test_a_hopper_card_would_have_shown_its_workspaces():
    code = run_cells("09_how_exact", "setup", "attention-measure", "attention")
    on = {name: code["attention_peaks"](open_card(name, kind="simulated"), 16, 256, code["attention"])[0]
          for name in ("A100 80GB", "H100 80GB")}
    assert on["A100 80GB"] == pytest.approx(16.75, abs=0.001)
    assert on["H100 80GB"] - on["A100 80GB"] == pytest.approx(2 * (33_554_432 - 8_519_680) / MiB)


def test_replayed_traces_are_fresh():
    stored = json.loads((DATA / "replayed_traces.json").read_text())
    assert len(stored["traces"]) == 6 and all(seen["differences"] == 0 for seen in stored["traces"].values())
    assert sum(seen["blocks"] for seen in stored["traces"].values()) > 10_000
    if not os.environ.get("TRACES"):
        pytest.skip("recorded traces: set TRACES to their folder")
    assert counts(os.environ["TRACES"]) == stored
