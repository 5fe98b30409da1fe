"""The teacher's guide says what the notebooks say: its figures, headings and exercises are theirs."""

import pathlib
import re

import nbformat
import pytest

from helpers import FusionConfig, GiB
from helpers.cards.catalogue import CARDS

NOTEBOOKS = pathlib.Path(__file__).parents[2] / "notebooks"
GUIDE = (NOTEBOOKS / "workshop.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\d\d_\w+)\n(.*?)(?=^##)", GUIDE, flags=re.M | re.S))
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def cells(name: str):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells


def printed(name: str) -> str:
    return "\n".join(output["text"] for cell in cells(name) if cell.cell_type == "code" for output in cell.outputs
                     if output["output_type"] == "stream")


def test_every_notebook_has_its_section():
    assert sorted(SECTIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_its_figures_are_printed_in_the_notebook(name):
    for figure in re.findall(r"(\d+\.\d+) GiB", SECTIONS[name]):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", printed(name)), figure


def test_no_figure_stands_where_no_test_looks():
    rest = GUIDE
    for section in SECTIONS.values():
        rest = rest.replace(section, "")
    assert not re.findall(r"\d+\.\d+ GiB", rest)
    assert sum(len(re.findall(r"\d+\.\d+ GiB", section)) for section in SECTIONS.values()) > 15


def test_the_guesses_are_those_of_the_notebooks():
    """A commonest wrong prediction is the one that stands in the notebook, and the measurement follows it."""
    found = []
    for name, section in SECTIONS.items():
        pair = re.search(r"prediction\*\*:.*?(\d+\.\d+) GiB.*?Measured[^:]*: (\d+\.\d+) GiB", section, re.S)
        if pair:  # 07 asks for three things, and 09 for per cent
            assert "Your guess: {} GiB. Measured: {} GiB.".format(*pair.groups()) in printed(name), name
            found.append(name[:2])
    assert found == ["00", "01", "02", "03", "04", "05", "06", "08", "10"]


def test_four_people_fit_on_the_card():
    gib = int(re.search(r"capacity=(\d+) \* GiB\)` is right for four people on 24 GB", " ".join(GUIDE.split()))[1])
    card = CARDS["RTX 3090"]
    assert 4 * (gib * GiB + card.context) < card.total
    assert FusionConfig.for_card(gib * GiB).depth >= 1


def test_make_check_ends_as_the_guide_says():
    source = (NOTEBOOKS.parent / "tests" / "tools" / "check.py").read_text(encoding="utf-8")
    last = re.findall(r'print\(f?"(.*?)"', source)[-1]
    assert last.startswith("ready:") and "yes" in last


@pytest.mark.parametrize("name", NAMES)
def test_its_exercises_exist(name):
    headings = "\n".join(cell.source for cell in cells(name) if cell.cell_type == "markdown")
    for number in re.findall(r"[Ee]xercises? (\d)", SECTIONS[name]):
        assert re.search(rf"^### {number}\. ", headings, re.M), number


def test_the_sections_it_names_exist():
    headings = {heading for name in NAMES for cell in cells(name) if cell.cell_type == "markdown"
                for heading in re.findall(r"^##+ (.+)$", cell.source, re.M)}
    for line in GUIDE.splitlines():
        if line.startswith("|") and "_" in line:
            for named in re.findall(r'"([^"]+)"', line):
                assert named.rstrip(".") in headings, named


@pytest.mark.parametrize("plan", ["A half day", "One hour"])
def test_a_plan_has_no_gap(plan):
    section = GUIDE.split(f"\n## {plan}\n")[1].split("\n## ")[0]
    times = [tuple(map(int, pair)) for pair in re.findall(r"^\| (\d+)–(\d+) \|", section, re.M)]
    assert times[0][0] == 0 and times[-1][1] == {"A half day": 240, "One hour": 60}[plan]
    assert all(end == start for (_, end), (start, _) in zip(times, times[1:], strict=False))
