"""What 00_anatomy says in words, held against runs of its own code on the simulated card."""

import pathlib

import nbformat
import pytest
import torch

from helpers import FusionTransformer, GiB

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "00_anatomy.ipynb"


@pytest.fixture(scope="module")
def said():
    """The names of the notebook after its cells that measure."""
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    patch, names = pytest.MonkeyPatch(), {}
    with patch.context() as environment:
        environment.setenv("CARD", "simulated")
        for cell in ("imports", "page-picture", "encode-full", "shapes", "count", "guess", "train", "measure",
                     "bytes-per-parameter", "foreach", "phases", "watch", "watch-print"):
            if cell == "phases":
                names["run"] = names["card"].run(names["training"](names["config"]), batch_size=2)
            exec(cells[cell], names)
    return names


def at_peak(run):
    return run.timeline.phase[run.timeline.peak]


def test_the_model(said):
    assert round(said["parameters"] / 1e6) == 363
    assert said["config"].pages * 4 == 20 and said["shapes"]["blocks.0"] == (20, 512, 1792)
    block = FusionTransformer(said["config"].tiny()).blocks[0]
    weights = {name: weight.numel() for name, weight in block.named_parameters() if weight.dim() == 2}
    assert sum(weights.values()) == 12 * said["config"].tiny().width ** 2
    assert sum(size for name, size in weights.items() if "feed_forward" in name) * 3 == 2 * sum(weights.values())


def test_the_parts_add_up_to_the_whole(said):
    """`position` is a parameter of the model itself, and the blocks are nine."""
    parts = dict(said["model"].named_children())
    assert sum(said["millions"](part) for part in parts.values()) + said["model"].position.numel() / 1e6 == (
        pytest.approx(said["millions"](said["model"])))
    assert len(parts["blocks"]) == 9


def test_frozen_encoders_leave_no_activations(said):
    roles = said["encoding"].roles_at_peak
    assert roles["activations"] == roles["gradients"] == 0
    assert roles["parameters"] > 1.5 * GiB


def test_twenty_bytes_in_the_optimizer_step(said):
    default, parameters = said["default"], said["parameters"]
    assert at_peak(default) == "optimizer step"
    for role, expected in (("parameters", 4), ("gradients", 4), ("optimizer state", 8), ("temporaries", 4)):
        assert default.roles_at_peak[role] / parameters == pytest.approx(expected, rel=0.03)
        assert default.roles_at_peak[role] >= expected * parameters
    assert default.peak_allocated / parameters == pytest.approx(20, rel=0.02)
    assert default.roles_at_peak["activations"] == 0
    largest = next(record for record in default.live_at_peak if record.role == "temporaries")
    assert largest.operator == "aten._foreach_sqrt"


def test_the_other_optimizers(said):
    loop, fused = said["runs"]["foreach=False"], said["runs"]["fused=True"]
    assert at_peak(loop) == "optimizer step" and at_peak(fused) == "backward"
    temporaries = [record for record in loop.live_at_peak if record.role == "temporaries" and record.bytes > 2**24]
    assert [record.bytes for record in temporaries] == [56 * 2**20] * 2
    moments = range(len(fused.timeline))
    spikes = [fused.timeline.by_role["temporaries"][i] for i in moments if fused.timeline.phase[i] == "optimizer step"]
    assert max(spikes) < 2**25  # the cuBLAS workspaces


def test_the_peak_is_at_the_start_of_backward_in_the_second_step(said):
    peaks, run = said["peaks"], said["run"]
    assert max(peaks, key=peaks.get) == (1, "backward")
    assert run.roles_at_peak["activations"] == pytest.approx(max(run.timeline.by_role["activations"]), rel=0.02)
    assert peaks[1, "backward"] - peaks[0, "backward"] == pytest.approx(8 * said["parameters"], rel=0.02)
    end = max(i for i in range(len(run.timeline)) if run.timeline.phase[i] == "optimizer step")
    assert run.timeline.by_role["activations"][end] == 0


def test_allocated_reserved_used(said):
    seen = said["seen"]
    assert all(allocated <= reserved <= used for allocated, reserved, used in seen.values())
    assert [size / GiB for size in seen["del big"][:2]] == [1, 3]
    assert [size / GiB for size in seen["empty_cache()"][:2]] == [1, 1]
    more = [after - before for after, before in zip(seen["three numbers more"], seen["empty_cache()"], strict=True)]
    assert more == [512, 2 * 2**20, 2 * 2**20]


def test_counters_without_cuda_are_zero():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0


def test_mps_has_no_peak_counter():
    assert hasattr(torch.mps, "current_allocated_memory")
    assert not [name for name in dir(torch.mps) if name.startswith("max_memory")]
