"""What notebook 04 says about the four ways to fuse. Its stored outputs are compared with a new run by nbval."""

import dataclasses
import re

import pytest
import torch

from helpers import FusionConfig, FusionTransformer, GiB, open_card
from tests.notebook_cells import run_cells, stored_text

NAME = "04_fusion_projection"
FUSIONS = ("concat", "project-features", "project-tokens", "project-add")


@pytest.fixture(scope="module")
def cells():
    return run_cells(NAME, "imports", "training", "fuse", "by-hand")


def table(cell: str) -> dict[str, str]:
    return {line.split()[0]: line for line in stored_text(NAME, cell).splitlines() if line.startswith(FUSIONS)}


@pytest.mark.parametrize(("how", "peak", "largest"), [
    ("project-features", 13.9, 6), ("project-tokens", 19.4, 4), ("project-add", 6.7, 13)])
def test_peaks_and_largest_batches(how, peak, largest):
    line = table("measure-all")[how]
    assert float(re.search(r"([\d.]+) GiB", line)[1]) == pytest.approx(peak, rel=0.02)
    assert abs(int(line.split()[-1]) - largest) <= 1


def test_adding_saves_about_three_times_as_much_as_cat_on_tokens(cells):
    card = open_card(kind="simulated")
    peaks = {how: card.run(cells["training"](cells["configs"][how]), 4).peak_allocated / GiB for how in FUSIONS[2:]}
    assert 2.7 < peaks["project-tokens"] / peaks["project-add"] < 3.3
    assert cells["configs"]["project-tokens"].width == cells["configs"]["project-add"].width == 512


def test_the_tables_of_twice_the_tokens_are_larger_than_the_baselines(cells):
    tables = {how: cells["activations"](cells["configs"][how])[0] for how in FUSIONS}
    rest = {how: cells["activations"](cells["configs"][how])[1] for how in FUSIONS}
    assert tables["project-tokens"] > tables["concat"] and tables["project-tokens"] == 4 * tables["project-add"]
    assert rest["project-tokens"] == rest["project-features"]


def test_by_hand_is_what_was_measured():
    by_hand, measured = table("by-hand"), table("by-kind")
    for how in FUSIONS[1:]:
        hand, card = (list(map(float, re.findall(r"([\d.]+) GiB", text[how]))) for text in (by_hand, measured))
        assert hand[0] == pytest.approx(card[0], rel=0.01) and hand[1] == pytest.approx(card[1], rel=0.08)


def test_the_parameters_are_in_the_blocks_not_in_the_projection():
    with torch.device("meta"):
        model = FusionTransformer(dataclasses.replace(FusionConfig(), fusion="project-add"))
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert sizes["fusion"] < 0.04 * sizes["blocks"]
    assert "12.2 times smaller" in stored_text(NAME, "parameters-print")


def test_the_peak_of_twice_the_tokens_is_in_attention():
    largest = table("moved-print")
    assert "[160, 1024, 1024]" in largest["project-tokens"] and "attention" in largest["project-tokens"]
    assert all("feed_forward" in largest[how] for how in ("project-features", "project-add"))


@pytest.fixture(scope="module")
def ranges():
    """(low, high) in per cent after 22 and after 60 steps, as the notebook prints it."""
    found = {}
    for line in stored_text(NAME, "compare-small").splitlines():
        numbers = [int(number) for pair in re.findall(r"(\d+) to +(\d+) %", line) for number in pair]
        if numbers:
            found[line[:18].strip()] = numbers[:2], numbers[2:]
    return found


def test_it_is_another_model(ranges):
    """The narrow ones learn more slowly on the small task, and end within five points of the others."""
    assert len(ranges) == 6
    for how in ("project-tokens", "project-add"):
        assert ranges[how][0][1] <= ranges["concat"][0][0]
    late = [ranges[how][1] for how in FUSIONS]
    assert max(high for _, high in late) - min(low for low, _ in late) <= 5
    assert ranges["project-tokens"][0][1] - ranges["project-features"][0][0] >= 5  # overlap, not by rounding alone


def test_dropped_features_are_missed(ranges):
    for moment in (0, 1):
        assert ranges["narrow"][moment][1] < min(ranges[how][moment][0] for how in FUSIONS)
    assert "narrow             width 16" in stored_text(NAME, "compare-small")
    assert "project-add        width 16" in stored_text(NAME, "compare-small")


def test_apart_only_one_half_of_the_answer_is_learned(ranges):
    low, high = ranges["cat on 0"][1]
    assert low < 25 < high <= 30
    assert "one half of the answer 25 %" in stored_text(NAME, "compare-small")


def test_on_the_batch_axis_nothing_is_fused(cells):
    text = stored_text(NAME, "cat-zero")
    assert text.startswith("[4, 512, 512]") and "target batch_size (2)" in text
    assert stored_text(NAME, "cat-zero-silent").endswith("True\n")
    assert stored_text(NAME, "solution-narrow").startswith("Right")
