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


def test_it_is_another_model():
    """The narrow ones learn more slowly on the small task; the wide ones get it right."""
    worst = {how: int(re.search(r"more than (\d+) of 10", line)[1]) for how, line in table("compare-small").items()}
    assert worst["concat"] == worst["project-features"] == 9
    assert worst["project-add"] < worst["project-tokens"] < worst["concat"]


def test_on_the_batch_axis_nothing_is_fused(cells):
    text = stored_text(NAME, "cat-zero")
    assert text.startswith("[4, 512, 512]") and "target batch_size (2)" in text
    assert stored_text(NAME, "cat-zero-silent").endswith("True\n")
    assert stored_text(NAME, "solution-narrow").startswith("Right")
