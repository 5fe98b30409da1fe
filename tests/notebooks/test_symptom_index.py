"""The README leads from a symptom to its explanation: each of the 33 cases is there, once, and its link works.

JupyterLab finds no heading that begins with a figure, or has quotation marks or brackets in it. So a link may lead to a
heading before the section that it names, in the same part of the notebook.
"""

import pathlib
import re

import nbformat
import pytest

from tests.cases.test_cases import CASES

ROOT = pathlib.Path(__file__).parents[2]
INDEX = (ROOT / "README.md").read_text(encoding="utf-8").split("## Find your symptom")[1].split("\n## ")[0]
LINES = [line for line in INDEX.splitlines()
         if line.startswith("| ") and not re.fullmatch(r"\| \*\*.+\*\* \| \|", line)]
ROW = r"\| (.+) <!-- (\w\d) --> \| \[(\d\d), (.+)\]\((notebooks/(\d\d)_\w+\.ipynb)#(\S+)\) \|"
ROWS = [match.groups() for line in LINES if (match := re.fullmatch(ROW, line))]


def plain(heading: str) -> str:
    return re.sub(r"[`*]", "", heading)


def parts(path: str) -> list[list[str]]:
    """The notebook's headings without marks, in order, one list for each `##` heading and what stands under it."""
    found = []
    for cell in nbformat.read(ROOT / path, as_version=4).cells:
        prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.S | re.M) if cell.cell_type == "markdown" else ""
        for level, heading in re.findall(r"^(##+) (.+)$", prose, flags=re.M):
            if level == "##":
                found.append([])
            found[-1].append(plain(heading))
    return found


def test_every_row_can_be_read():
    assert len(ROWS) == len(LINES) - 2  # less the head of the table


def test_every_case_is_there_once():
    assert sorted(case for _, case, *_ in ROWS) == sorted(CASES) and len(CASES) == 33
    assert len({symptom for symptom, *_ in ROWS}) == 33


@pytest.mark.parametrize(("symptom", "case", "number", "section", "path", "file", "anchor"), ROWS,
                         ids=[row[1] for row in ROWS])
def test_a_link_leads_to_its_section(symptom, case, number, section, path, file, anchor):
    assert number == file
    assert not set('"()') & set(anchor) and not anchor[0].isdigit()
    inside = [part for part in parts(path) if anchor in {heading.replace(" ", "-") for heading in part}]
    assert len(inside) == 1, "one heading in the notebook is called so"
    names = [heading.replace(" ", "-") for heading in inside[0]]
    assert plain(section) in inside[0] and names.index(anchor) <= inside[0].index(plain(section))
