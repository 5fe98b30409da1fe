"""Any file is read or refused with one sentence; nothing in it is run; old and broken entries are passed over."""

import copy
import os
import pathlib
import pickle
import random
import subprocess
import sys

import pytest

from helpers import GiB, open_snapshot, plots
from helpers.snapshot import main
from helpers.snapshots import unpickling
from helpers.snapshots.reading import read
from helpers.snapshots.report import report
from helpers.snapshots.snapshot import Snapshot
from helpers.snapshots.unpickling import SnapshotError, load
from tests.snapshots.files import long_recording, of_orders, write

ROOT = pathlib.Path(__file__).parents[2]
FRAMES = [{"name": "at::_ops::empty::call", "filename": "??", "line": 0},
          {"name": "_call_impl", "filename": "/usr/lib/python3/site-packages/torch/nn/modules/module.py", "line": 7},
          {"name": "train", "filename": "/home/me/train.py", "line": 12}]


class Runs:
    """A pickle of it calls a function when it is read."""

    def __reduce__(self):
        return os.mkdir, ("was-run",)


def event(action, address, size, **more):
    place = "device_free" if action == "oom" else "addr"
    return {"action": action, place: address, "size": size, "stream": 0, "frames": FRAMES, **more}


def small() -> dict:
    """A snapshot with everything in it."""
    block = {"size": 2**20, "state": "active_allocated", "requested_size": 10**6, "frames": FRAMES}
    rest = {"size": 19 * 2**20, "state": "inactive", "requested_size": 0, "frames": []}
    segment = {"device": 0, "address": 2**40, "total_size": 20 * 2**20, "allocated_size": 2**20, "stream": 0,
               "active_size": 2**20, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
               "frames": [], "blocks": [{**block, "address": 2**40}, {**rest, "address": 2**40 + 2**20}]}
    trace = [event("segment_alloc", 2**40, 20 * 2**20), event("alloc", 2**40, 10**6),
             event("alloc", 2**40 + 2**20, 5 * 10**6), event("free_requested", 2**40 + 2**20, 5 * 10**6),
             event("free_completed", 2**40 + 2**20, 5 * 10**6), event("oom", 2**21, 10**9), event("snapshot", 0, 0)]
    return {"segments": [segment], "device_traces": [[], trace, []], "allocator_settings": {"max_split_size": -1},
            "external_annotations": []}


def of_device_1(data):
    for segment in data["segments"]:
        segment["device"] = 1
    return data


def all_of(snapshot: Snapshot) -> str:
    """Everything that a reader may ask for."""
    if len(snapshot):
        plots.recording(snapshot)
    if snapshot.segments:
        plots.segments(snapshot.segments)
    return report(snapshot)


def test_reads_the_device_with_events(tmp_path):
    snapshot = open_snapshot(write(tmp_path / "a.pickle", of_device_1(small())))
    assert len(snapshot) == 5 and snapshot.recording.skipped == 0
    assert snapshot.failure.bytes == 10**9 and snapshot.capacity == 22 * 2**20
    assert snapshot.culprits[0].line == "train.py:12 in train" and snapshot.culprits[0].phase == "forward"
    assert snapshot.culprits[0].role == "unknown"
    assert list(snapshot.allocated) == [0, 0, 2**20, 2**20 + 5_000_192, 2**20, 2**20]
    assert list(snapshot.reserved) == [0] + [20 * 2**20] * 5
    assert "train.py:12 in train" in all_of(snapshot)
    assert len(open_snapshot(tmp_path / "a.pickle", device=0)) == 0


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_every_protocol(tmp_path, protocol):
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(of_device_1(small()), protocol))
    assert len(open_snapshot(tmp_path / "a.pickle")) == 5


def test_older_formats():
    data = of_device_1(small())
    del data["allocator_settings"], data["external_annotations"]  # 2.1
    assert len(Snapshot(read(data))) == 5
    for trace in data["device_traces"]:
        trace[:] = [entry for entry in trace if entry["action"] != "free_completed"]  # not recorded
    assert list(Snapshot(read(data)).allocated)[-1] == 2**20
    block = data["segments"][0]["blocks"][0]
    block["history"] = [{"real_size": 10**6, "frames": FRAMES}]  # before 2.1
    del block["frames"], block["requested_size"]
    snapshot = Snapshot(read(data["segments"], 1))  # torch.cuda.memory_snapshot(): segments only
    assert len(snapshot) == 0 and snapshot.culprits[0].line == "train.py:12 in train"
    assert "No history" in all_of(snapshot)
    with pytest.raises(ValueError, match="_record_memory_history"):
        plots.recording(snapshot)


def test_a_history_that_begins_late_counts_what_was_there():
    snapshot = of_orders([30 * 2**20, 40 * 2**20, ("free", 0), 50 * 2**20], 2**30)
    whole = snapshot.recording
    assert list(snapshot.allocated)[-1] == 90 * 2**20 and len(whole.kinds) == 7


@pytest.mark.parametrize(("content", "sentence"), [
    (b"", "is empty"), (b"\x80\x04", "truncated"), (b"PK\x03\x04 no pickle", "no memory snapshot|truncated"),
    (pickle.dumps({"weights": [1, 2]}), "neither 'segments' nor"), (pickle.dumps(7), "holds a int"),
    (pickle.dumps(small())[:700], "truncated"), (b"{\"segments\": []}", "no memory snapshot|truncated")])
def test_what_is_no_snapshot_gets_a_sentence(tmp_path, content, sentence, capsys):
    (tmp_path / "a.pickle").write_bytes(content)
    with pytest.raises(SnapshotError, match=sentence) as caught:
        open_snapshot(tmp_path / "a.pickle")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert main([str(tmp_path / "a.pickle")]) == 1
    assert capsys.readouterr().err.strip() == str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(SnapshotError, match="No such file"):
        open_snapshot(tmp_path / "none.pickle")
    with pytest.raises(SnapshotError, match="folder"):
        open_snapshot(tmp_path)


def test_a_gigantic_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.pickle"
    with open(path, "wb") as file:
        file.truncate(unpickling.LARGEST + 1)  # takes no room on the disk
    with pytest.raises(SnapshotError, match=r"2\.0 GiB.*max_entries"):
        open_snapshot(path)


@pytest.mark.parametrize("thing", [Runs(), {"segments": [Runs()]}, {"segments": {1: Snapshot}}, [GiB, print]])
def test_nothing_in_a_file_is_run(tmp_path, monkeypatch, thing):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SnapshotError, match="was not run"):
        load(write(tmp_path / "a.pickle", thing))
    assert not (tmp_path / "was-run").exists()


def damaged(number: int) -> bytes:
    """The small snapshot with something wrong: bytes flipped or cut, keys missing, types changed."""
    chance = random.Random(number)
    if number % 2:
        content = bytearray(pickle.dumps(of_device_1(small()), 4))
        for _ in range(chance.randint(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        return bytes(content[:chance.randint(1, len(content))] if number % 10 == 1 else content)
    data = of_device_1(copy.deepcopy(small()))
    for _ in range(chance.randint(1, 4)):
        node = data
        while True:
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.8:
                node = node[key]
                continue
            if chance.random() < 0.4:
                del node[key]
            else:
                node[key] = chance.choice([None, "text", -1, 2**70, 1.5, [], {}, [[]], {"a": 1}, True, b"x", 0])
            break
        if not data:
            break
    return pickle.dumps(data, 4)


def test_a_thousand_damaged_files_give_an_answer_or_a_sentence(tmp_path):
    path, answers = tmp_path / "damaged.pickle", 0
    for number in range(1000):
        path.write_bytes(damaged(number))
        try:
            snapshot = open_snapshot(path)
            assert isinstance(report(snapshot), str)
            if number % 50 == 0:
                all_of(snapshot)
            answers += 1
        except SnapshotError as error:
            assert "\n" not in str(error) and len(str(error)) < 300
    assert 300 < answers < 900


MILLION = """
import resource, sys, time
from helpers import open_snapshot, plots
started = time.process_time()
snapshot = open_snapshot(sys.argv[1])
opened = time.process_time()
plots.recording(snapshot)
print(opened - started, time.process_time() - opened, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.timing
def test_a_million_events(tmp_path):
    path = write(tmp_path / "long.pickle", long_recording(1_000_000))
    said = subprocess.run([sys.executable, "-c", MILLION, str(path)], capture_output=True, text=True, check=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    opening, drawing, kib = map(float, said.stdout.split())
    assert opening < 10 and drawing < 2 and kib < 2 * 2**20


def test_a_progress_bar_only_when_it_takes_long(monkeypatch, tmp_path, capsys):
    path = write(tmp_path / "a.pickle", long_recording(120_000, depth=2))
    open_snapshot(path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(unpickling, "PATIENCE", -1)
    open_snapshot(path)
    assert "reading: ##" in capsys.readouterr().err


def test_the_command_prints_the_report(tmp_path, capsys):
    path = write(tmp_path / "a.pickle", of_device_1(small()))
    assert main([str(path), "--total", "23.69", "--picture", str(tmp_path / "a.png")]) == 0
    said = capsys.readouterr().out
    assert "train.py:12 in train" in said and "somebody else's memory" in said and "What if" in said
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert main([str(path), "--expandable", "--max-split-size-mb", "2"]) == 1
    assert "20 MiB" in capsys.readouterr().err
