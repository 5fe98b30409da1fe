"""What notebook 07 says about all techniques together. Its stored outputs are compared with a new run of every cell
(nbval), so what they say is what the code does; here they are held against the prose and the goals of the series."""

import json
import pathlib
import re

import nbformat
import pytest
import torch

from helpers import GiB, open_card, plots
from tests.notebooks.notebook_cells import NOTEBOOKS, run_cells, stored_text

NAME = "07_all_together"
TESTS = pathlib.Path(__file__).parents[1]
CLAIMS = json.loads((NOTEBOOKS / "claims.json").read_text(encoding="utf-8"))


def rows(cell: str) -> dict[str, tuple[float | None, int | None]]:
    """label: (GiB at batch 4 or None, largest batch or None)"""
    found = re.findall(r"^(\S.*?) +(?:([\d.]+) GiB|does not fit) +largest batch (\w+)$", stored_text(NAME, cell), re.M)
    return {label: (float(peak) if peak else None, int(largest) if largest != "any" else None)
            for label, peak, largest in found}


def numbers(cell: str, pattern: str) -> dict[str, float]:
    return {label: float(value) for label, value in re.findall(pattern, stored_text(NAME, cell), re.M)}


def stored_words(cell: str) -> str:
    """The picture of a cell, in words."""
    cells = nbformat.read(NOTEBOOKS / f"{NAME}.ipynb", as_version=4).cells
    return "".join(output["data"].get("text/plain", "") for each in cells if each.id == cell for output in each.outputs
                   if "data" in output)


def test_each_alone():
    alone = rows("measure-alone")
    assert alone["baseline"] == (None, 3) and alone["clear_cache"] == (None, 3)
    peaks = {label: peak for label, (peak, _) in alone.items() if peak}
    assert min(peaks, key=peaks.get) == "checkpointing" and max(peaks, key=peaks.get) == "amp"
    assert peaks["checkpointing"] < 0.6 * sorted(peaks.values())[1]  # nothing else comes near
    for label, peak in {"amp": 19.9, "checkpointing": 8.3, "projection": 13.9, "accumulation": 16.5}.items():
        assert peaks[label] == pytest.approx(peak, rel=0.02)
    assert [alone[label][1] for label in ("amp", "checkpointing", "projection")] == [4, 20, 6]


def test_one_after_the_other():
    cumulative = rows("measure-cumulative")
    peaks = [peak for peak, _ in cumulative.values()]
    assert peaks[1:] == sorted(peaks[1:], reverse=True)
    assert cumulative["+ checkpointing"][1] >= 19 and cumulative["+ projection"][1] >= 40
    falls = [above - peak for above, peak in zip(peaks[1:], peaks[2:], strict=False)]
    assert falls[0] + falls[1] > 0.95 * sum(falls)  # below AMP's row two of the five do nearly all of it


def test_savings_do_not_add_up():
    amp, checkpointing, both, total, on_top = map(float, re.findall(r"([\d.]+) GiB", stored_text(NAME, "add-up"))[1:])
    assert total == pytest.approx(amp + checkpointing, abs=0.02) and both < 0.8 * total
    assert on_top == pytest.approx(both - checkpointing, abs=0.02) and on_top < 0.15 * amp


def test_a_run_that_fails_has_the_same_number_in_both_kinds_of_picture():
    names = run_cells(NAME, "imports", "model", "training")
    run = names["at_batch_4"]()
    number = f"> {sum(run.roles_at_peak.values()) / GiB:.1f}"
    ladder = plots.ladder([("baseline", run, None)])
    combinations = plots.combinations([(set(), run)], ["amp"])
    for figure in (ladder, combinations):
        assert any(number in text.get_text() for axes in figure.axes for text in axes.texts)
    assert f"none {number} GiB allocated when it failed, a lower bound" in stored_words("plot-combinations")


def test_what_each_saves_on_top_of_the_others():
    on_top = numbers("on-top", r"^(\w+) +saves +([\d.]+) GiB")
    assert on_top["amp"] < 0.25 and on_top["accumulation"] == pytest.approx(0.5, abs=0.1)
    assert on_top["clear_cache"] == 0 and min(on_top["checkpointing"], on_top["projection"]) > 3
    assert stored_text(NAME, "clear-cache-pairs").endswith(": {0} bytes\n")
    assert stored_text(NAME, "measure-combinations").startswith("30 of 32")


def test_what_each_costs():
    work = numbers("costs", r"^(\w+) +operations ([\d.]+)")
    time = numbers("costs", r"^(\w+) .*estimated time of a step ([\d.]+)$")
    assert work["checkpointing"] == pytest.approx(4 / 3, abs=0.01) and work["amp"] == work["accumulation"] == 1
    assert work["projection"] < 0.4 and time["amp"] < 0.7 and 1 < time["accumulation"] < 1.05


def test_the_result():
    verdicts = dict(re.findall(r"^(\w+) +(.*)$", stored_text(NAME, "small-compare"), re.M))
    assert verdicts.pop("projection") == "another curve"
    assert set(verdicts.values()) == {"the same to 0.01"}
    assert stored_text(NAME, "adam-8bit-learns").endswith("True\n")


def test_past_the_five():
    text = stored_text(NAME, "measure-past")
    change = numbers("measure-past", r"^(\S.*?) +[\d.]+ GiB +([+-][\d.]+)")
    work = numbers("measure-past", r"^(\S.*?) +[\d.]+ GiB.*operations ([\d.]+)")
    assert re.search(r"^fused attention.*peak in optimizer step$", text, re.M)
    assert re.search(r"^start.*peak in backward$", text, re.M)
    assert all(abs(change[label]) < 0.03 for label in ("fused AdamW", "foreach=False", "offload to host"))
    assert change["8-bit Adam"] < -1.9 and change["bf16 parameters"] < change["8-bit Adam"]
    assert change["keep Linears"] > 1.5 and work["keep Linears"] * 4 / 3 < 1.03


def test_how_far_one_card_goes():
    far = rows("measure-far")
    assert far["+ fused attention"][1] > 1.8 * far["start"][1] and far["+ fused attention"][1] >= 40
    largest = [batch for _, batch in far.values()]
    assert largest == sorted(largest) and far["+ offload to host"][1] > 15 * 4
    assert far["+ offload to host"][1] > 1.4 * far["+ fused attention"][1]
    assert "feed_forward" in stored_text(NAME, "far-peak").splitlines()[1]


def test_the_exercises():
    lines = re.findall(r"([\d.]+) GiB in (.+)$", stored_text(NAME, "solution-diagnose"), re.M)
    (at_4, phase), (fused_at_4, _), *at_40 = lines
    assert float(fused_at_4) < float(at_4) and phase == "optimizer step"
    assert at_40[0] == at_40[1] and at_40[0][1] == "backward"
    assert stored_text(NAME, "solution-change").startswith("Right")


def test_the_ledger_covers_the_advice():
    assert len(CLAIMS) >= 11
    assert {claim["verdict"] for claim in CLAIMS} == {"true", "half true", "false"}


def test_the_guide_names_claims_by_their_numbers():
    guide = (NOTEBOOKS / "workshop.md").read_text(encoding="utf-8")
    sentence = re.search(r"The four claims are (.*?):", guide, re.S)[1]
    named = re.findall(r"(\d+) \(([^)]+)\)", " ".join(sentence.split()))
    assert len(named) == 4
    for number, words in named:
        assert words in CLAIMS[int(number) - 1]["claim"], number


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["claim"][:40])
def test_each_claim_has_a_cell_and_a_test(claim):
    notebook = nbformat.read(NOTEBOOKS / f"{claim['evidence']['notebook']}.ipynb", as_version=4)
    assert claim["evidence"]["cell"] in {cell.id for cell in notebook.cells if cell.cell_type == "code"}
    file, _, function = claim["test"].partition("::")
    assert re.search(rf"^def {function}\(", (TESTS / file).read_text(encoding="utf-8"), re.M), claim["test"]
    assert not re.search(r"\d\.\d", claim["note"]), "a number in a note would be held by no test"


def test_it_is_offloading_that_counts_at_a_large_batch():
    names = run_cells(NAME, "imports", "model", "past-function", "step-in-backward")
    beyond, card = names["beyond"], open_card(kind="simulated")
    assert not card.run(beyond("sdpa", names["StepInBackward"]), 60).fits
    assert card.run(beyond("sdpa", saving=torch.autograd.graph.save_on_cpu), 60).fits
