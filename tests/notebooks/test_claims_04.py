"""What notebook 04 says about the four ways to fuse. Its stored outputs are compared with a new run by nbval."""

import dataclasses
import re

import nbformat
import pytest
import torch
import torch.utils.checkpoint

from helpers import FusionConfig, FusionTransformer, GiB, make_batch, open_card
from tests.notebooks.notebook_cells import NOTEBOOKS, run_cells, stored_text

NAME = "04_fusion_projection"
FUSIONS = ("concat", "project-features", "project-tokens", "project-add")


@pytest.fixture(scope="module")
def cells():
    return run_cells(NAME, "imports", "training", "fuse", "by-hand", "check-narrow")


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


def fewer(config, **changes):
    return dataclasses.replace(config, **({"vit_dim": 256, "t5_dim": 256, "heads": 8} | changes))


def joined(config, axis):
    return dataclasses.replace(config, fusion=f"project-{axis}")


def steps(config, model=FusionTransformer, count=2, batch=None, amp=False, prepare=dict):
    """A training function as the exercise asks for one, with something else changed."""
    def train(device, batch_size):
        network = model(config).to(device)
        optimizer = torch.optim.AdamW(network.parameters())
        for _ in range(count):
            documents = make_batch(config, batch or batch_size, device)
            with torch.autocast(device.type, dtype=torch.float16, enabled=amp):
                loss = network(**prepare(documents)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


class Recomputing(FusionTransformer):
    def run_blocks(self, h):
        for block in self.blocks:
            h = torch.utils.checkpoint.checkpoint(block, h, use_reentrant=False)
        return h


ANSWERS = {
    "as asked": (lambda config: steps(fewer(config)), "Right: batch 4 fits, peak 6.59 GiB."),
    "add": (lambda config: steps(joined(config, "add")), "it projects, with weights of [512, 768]"),
    "tokens": (lambda config: steps(joined(config, "tokens")), "it projects"),
    "features": (lambda config: steps(joined(config, "features")), "tokens are 1024 wide"),
    "projected to half": (lambda config: steps(fewer(config, t5_dim=512, heads=12, fusion="project-features")),
                          "it projects, with weights of [256, 256]"),
    "narrower": (lambda config: steps(fewer(config, vit_dim=128, t5_dim=128, heads=4)), "tokens are 256 wide"),
    "uneven": (lambda config: steps(fewer(config, vit_dim=128, t5_dim=384)), "the sides have 128 and 384 features"),
    "wide heads": (lambda config: steps(fewer(config, heads=4)), "4 heads share the width, so a head has 128"),
    "narrow heads": (lambda config: steps(fewer(config, heads=2)), "so a head has 256 features"),
    "heads not divided": (lambda config: lambda *_: fewer(config, heads=28), "cannot be divided into 28 heads"),
    "short": (lambda config: steps(fewer(config, seq_len=256)), "20 sequences of 256 tokens"),
    "few pages": (lambda config: steps(fewer(config, pages=2)), "8 sequences of 512 tokens"),
    "batch 2": (lambda config: steps(fewer(config), batch=2), "10 sequences of 512 tokens"),
    "sdpa": (lambda config: steps(fewer(config, attention="sdpa")), "no attention table is kept"),
    "amp": (lambda config: steps(fewer(config), amp=True), "activations are float16"),
    "fewer blocks": (lambda config: steps(fewer(config, depth=8)), "times what project-add does"),
    "recomputed": (lambda config: steps(fewer(config), Recomputing), "times what project-add does"),
    "one step": (lambda config: steps(fewer(config), count=1), "times what project-add does"),
    "first features": (lambda config: steps(config, lambda _: FusionTransformer(fewer(config)), prepare=lambda batch: {
        **batch, "vit": batch["vit"][..., :256], "t5": batch["t5"][..., :256]}), "Right:"),
    "baseline": (lambda config: steps(config), "runs out of memory"),
    "no gradient": (lambda config: lambda device, _: FusionTransformer(fewer(config)).to(device), "no parameter got"),
    "nothing": (lambda config: lambda *_: None, "put nothing on the card"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_exercise_says_what_else_was_changed(cells, added, capsys, answer):
    make, expected = ANSWERS[answer]
    cells["check_narrow"](make(cells["config"]))
    printed = capsys.readouterr().out
    assert expected in printed and printed.startswith("Right" if expected.startswith("Right") else "Not yet")


@pytest.fixture(scope="module")
def added(cells):
    """What the check compares with, without the long search for the largest batches."""
    cells["runs"] = {"project-add": cells["card"].run(cells["training"](cells["configs"]["project-add"]), 4)}


def test_the_exercise_quotes_what_cat_says(cells):
    picture, text = torch.zeros(2, 197, 512), torch.zeros(2, 512, 512)
    with pytest.raises(RuntimeError) as error:
        torch.cat([picture, text], dim=2)
    notebook = nbformat.read(NOTEBOOKS / f"{NAME}.ipynb", as_version=4)
    assert any(f"> {error.value}" in cell.source for cell in notebook.cells if cell.id == "exercise-shape-text")
    assert torch.cat([picture, text], dim=1).shape[1] == 197 + 512
    with pytest.raises(RuntimeError, match="Expected size 197"):
        torch.cat([picture, text], dim=0)
