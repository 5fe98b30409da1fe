"""What 10_read_a_snapshot says in words, held against runs of its own code on the simulated card."""

import re

import pytest

from helpers import GiB, MiB, open_card
from helpers.snapshots import diagnosis
from tests.notebooks.notebook_cells import run_cells, source, stored_text

NAME = "10_read_a_snapshot"


@pytest.fixture(scope="module")
def said():
    """The names of the notebook after its cells that measure."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CARD", "simulated")
        yield run_cells(NAME, "imports", "train", "training", "recorded", "guess", "measure-run", "reading-peak-print",
                        "reading-leak-run", "reading-fragmentation-run", "reading-somebody-run", "what-if-agreement",
                        "what-if-settings", "summary-print", "hours-run", "hours-print")


def test_one_line_holds_more_than_half(said):
    peak = said["peak"]
    in_use = int(peak.allocated[peak.when])
    assert in_use / GiB == pytest.approx(22.15, abs=0.005)  # the number of the prediction's text
    assert peak.culprits[0].bytes > in_use / 2
    line = int(peak.culprits[0].line.split(":")[1].split()[0])
    with open("helpers/model.py", encoding="utf-8") as file:
        assert "softmax" in file.read().splitlines()[line - 1]
    assert {culprit.phase for culprit in peak.culprits} <= {"forward", "unknown"}


def test_each_trouble_is_read_as_what_it_is(said):
    names = {said[name].reading.name for name in ("peak", "leak", "pieces", "others")}
    assert [said[name].reading.name for name in ("peak", "leak", "pieces", "others")] == [
        diagnosis.PEAK, diagnosis.LEAK, diagnosis.FRAGMENTATION, diagnosis.SOMEBODY] and len(names) == 4
    assert stored_text(NAME, "reading-somebody-run").endswith("without total=: too large a peak\n")


def test_the_leak_stays_and_grows(said):
    leak = said["leak"]
    assert len(leak.starts) >= 6  # batch 1 fitted for several steps
    assert [one.line.split(" in ")[1] for one in leak.leaks] == ["weights"]
    assert leak.leaks[0].per_step / GiB == pytest.approx(1.35, abs=0.01)


def test_the_fragmented_run_is_replayed_as_it_was(said):
    agreement = said["pieces"].agreement
    assert agreement.blocks_same == agreement.blocks and agreement.segments_same == agreement.segments


def test_what_the_settings_do(said):
    pieces, settings = said["pieces"], said["settings"]
    runs = {name: pieces.replay(**setting) for name, setting in settings.items()}
    assert {name for name, run in runs.items() if run.fits} == {
        "expandable", "max_split 100 MiB", "max_split 200 MiB", "0.5 GiB more"}
    assert runs["as recorded"].events == pieces.when
    assert runs["expandable"].capacity - runs["expandable"].peak_reserved > GiB
    calls = {name: run.driver_calls for name, run in runs.items()}
    assert calls["expandable"] > calls["max_split 100 MiB"] > calls["as recorded"]


def test_the_peak_dies_a_few_requests_later(said):
    assert said["peak"].replay(expandable_segments=True).fits
    growing = open_card(kind="simulated", expandable_segments=True).run(said["training"]([512, 512]), 4)
    assert not growing.fits and len(growing.timeline) - said["peak"].when < 800
    text = stored_text(NAME, "what-if-peak")
    assert "this request fits" in text and "OUT OF MEMORY" in text


def test_the_lines_of_the_summary(said):
    rows, pieces = said["rows"], said["pieces"]
    assert rows["Requested memory"] < rows["Allocated memory"] < rows["GPU reserved memory"]
    assert rows["Non-releasable memory"] <= rows["GPU reserved memory"] - rows["Allocated memory"]
    assert rows["Non-releasable memory"] > pieces.failure.bytes


def test_which_batch_it_was(said):
    assert said["lengths"][said["step"] - 1] == said["tokens"] == max(said["lengths"])


def test_the_exercises_have_the_answers_that_they_say():
    for cell in ("solution-a", "solution-c"):
        assert stored_text(NAME, cell).startswith("Right")
    assert "shown.append(output)" in stored_text(NAME, "solution-a")
    fits = [line for line in stored_text(NAME, "solution-b").splitlines() if "fits" in line]
    assert fits and all(int(re.search(r"(\d+) driver calls", line)[1]) < 500 for line in fits)
    assert "11.76" in source(NAME, "exercise-a-text") and "11.76" in source(NAME, "exercise-a")


def test_recording_costs_little_on_the_card(said):
    assert "same peak, allocated and reserved: True" in stored_text(NAME, "unchanged-print")
    assert len(said["peak"]) > 500 and said["peak"].cached < 300 * MiB
