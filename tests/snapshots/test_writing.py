"""A run's snapshot is what PyTorch's own reader, of the installed version, takes for one of its own."""

import copy
import pickle
import re

import pytest
import torch
from torch.cuda import _memory_viz

from helpers import FusionConfig, FusionTransformer, GiB, MiB, make_batch, open_card, open_snapshot


def train(device, batch_size):
    model = FusionTransformer(FusionConfig(depth=2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(**make_batch(FusionConfig(), batch_size, device)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def saved(path, capacity, **settings):
    card = open_card(kind="simulated", capacity=capacity, **settings)
    run = card.run(train, 2, record_history=True)
    run.save_snapshot(path)
    with open(path, "rb") as file:
        return run, pickle.load(file)


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    path = tmp_path_factory.mktemp("failed") / "oom.pickle"
    return *saved(path, 3 * GiB), path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("fitted") / "all.pickle"
    return *saved(path, 20 * GiB), path


def in_bytes(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\wi)?B", text).groups()
    return float(number) * {None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[unit]


def test_segsum_sums_up_the_run(failed):
    run, data, _ = failed
    assert not run.fits
    said = dict(re.findall(r"^(\w+): (\S+)", _memory_viz.segsum(data), re.M))
    held = sum(run.roles_at_peak.values())
    assert int(said["segments"]) == len(data["segments"]) > 30
    free = data["device_traces"][0][-1]["device_free"]
    assert in_bytes(said["total_reserved"]) == pytest.approx(3 * GiB - free, rel=0.02)  # it prints one decimal
    assert in_bytes(said["total_allocated"]) == pytest.approx(held, rel=0.02)  # as requested, before rounding
    assert sum(segment["allocated_size"] for segment in data["segments"]) == held
    assert sum(segment["total_size"] for segment in data["segments"]) == 3 * GiB - free


def test_trace_reads_every_action(failed, fitted):
    for run, data, _ in (failed, fitted):
        text = _memory_viz.trace(data)
        trace = data["device_traces"][0]
        actions = [event["action"] for event in trace]
        assert f"{len(trace)} entries" in text
        assert text.count("cudaMalloc(") == actions.count("segment_alloc") > 30
        assert actions.count("free_requested") == actions.count("free_completed") == text.count("del ") > 10
        assert ("raise OutOfMemoryError" in text) == (not run.fits)
    assert {"alloc", "free_requested", "free_completed", "segment_alloc"} == set(actions)


def test_the_plots_and_the_comparison_take_it(failed, fitted, capsys):
    for _, data, _ in (failed, fitted):
        for html in (_memory_viz.segment_plot(data), _memory_viz.trace_plot(data),
                     _memory_viz.trace_plot(data, plot_segments=True),
                     _memory_viz.trace_plot(copy.deepcopy(data), filter_freed=True)):
            assert "snapshot.pickle" in html
    lines = _memory_viz.compare(failed[1]["segments"], fitted[1]["segments"], format_flamegraph=lambda text: text)
    assert "only_after" in lines  # the card handed out the same addresses before
    flames = _memory_viz.memory(failed[1], format_flamegraph=lambda text: text)
    assert "active_allocated" in flames and "forward" in flames


def test_the_maximum_of_the_trace_is_the_peak_of_the_run(fitted):
    run, data, path = fitted
    now = most = 0
    for event in data["device_traces"][0]:
        now += event["size"] * {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
        most = max(most, now)
    assert most == pytest.approx(run.peak_allocated, rel=0.01)
    snapshot = open_snapshot(path)
    assert snapshot.failure is None
    assert int(snapshot.allocated.max()) == pytest.approx(run.peak_allocated, rel=0.01)
    assert int(snapshot.reserved.max()) == run.peak_reserved
    again = snapshot.replay()
    assert (again.peak_allocated, again.peak_reserved) == (run.peak_allocated, run.peak_reserved)


def test_what_was_written_is_read(failed):
    run, _, path = failed
    snapshot = open_snapshot(path, total=int(23.69 * GiB))
    assert snapshot.failure.bytes == run.request.bytes and snapshot.capacity == 3 * GiB
    assert int(snapshot.allocated[snapshot.when]) == sum(run.roles_at_peak.values())
    assert snapshot.cached == snapshot.reserved[-1] - snapshot.allocated[-1]
    agreement = snapshot.agreement
    assert agreement.blocks_same == agreement.blocks and agreement.segments_same == agreement.segments
    assert not snapshot.replay().fits and snapshot.replay(capacity=20 * GiB).fits
    assert re.fullmatch(r"model\.py:\d+ in forward", snapshot.culprits[0].line)
    assert snapshot.failure.place.phase == run.request.phase and snapshot.recording.skipped == 0


def test_phases_and_roles_are_those_of_the_run_where_frames_show_them(fitted):
    run, _, path = fitted
    snapshot = open_snapshot(path)
    sums = {}
    for culprit in snapshot.holders:
        sums[culprit.role] = sums.get(culprit.role, 0) + culprit.bytes
    roles = run.roles_at_peak
    assert sums["parameters"] == pytest.approx(roles["parameters"], rel=0.02)
    assert sums["optimizer state"] == pytest.approx(roles["optimizer state"], rel=0.02)
    phases = {place.phase for place in snapshot.recording.places}
    assert {"forward", "backward", "optimizer step"} <= phases
    assert len(snapshot.starts) == 1  # two steps


def test_no_frame_of_the_simulation_is_written(failed):
    _, data, _ = failed
    names = {frame["filename"] for event in data["device_traces"][0] for frame in event["frames"]}
    assert not any(part in name for name in names for part in ("recorder", "simulation", "_subclasses", "history"))
    assert any(name.endswith("helpers/model.py") for name in names) and any(__file__ == name for name in names)


def test_expandable_segments(tmp_path):
    run, data = saved(tmp_path / "grow.pickle", 3 * GiB, expandable_segments=True)
    assert {event["action"] for event in data["device_traces"][0]} >= {"segment_map", "alloc", "oom"}
    assert all(segment["is_expandable"] for segment in data["segments"])
    assert "total_reserved" in _memory_viz.segsum(data)
    snapshot = open_snapshot(tmp_path / "grow.pickle")
    assert snapshot.settings.expandable_segments and not run.fits
    assert int(snapshot.allocated[snapshot.when]) == sum(run.roles_at_peak.values())
    agreement = snapshot.agreement
    assert agreement.blocks_same == agreement.blocks and agreement.peak == agreement.recorded_peak


def test_a_run_without_a_history_says_how_to_get_one(tmp_path):
    run = open_card(kind="simulated").run(train, 1)
    with pytest.raises(ValueError, match="record_history=True"):
        run.save_snapshot(tmp_path / "none.pickle")


def test_recording_changes_nothing_else():
    card = open_card(kind="simulated")
    plain, recorded = card.run(train, 2), card.run(train, 2, record_history=True)
    assert plain == recorded and card.allocator.tell is None
    assert recorded.history.events and plain.peak_allocated > 100 * MiB
