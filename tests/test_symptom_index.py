"""The README leads from a symptom to its explanation: each of the 31 cases is there, once, and its link works."""

import pathlib
import re

import nbformat
import pytest

ROOT = pathlib.Path(__file__).parent.parent
INDEX = (ROOT / "README.md").read_text(encoding="utf-8").split("## Find your symptom")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| (.+) <!-- (\w\d) --> \| \[.+\]\((notebooks/\w+\.ipynb)#(.+)\) \|$", INDEX, re.M)
CASES = {"A1", "A4", "A5", "A6", "A7", "C1", "C2", "C4", "C5", "C6", "C8", "E1", "E2", "E4", "E5", "E7", "F1", "F2",
         "F3", "F4", "F5", "F7", "G1", "G4", "G5", "G6", "G7", "T1", "T2", "T4", "T5"}


def test_every_case_is_there_once():
    found = [case for _, case, _, _ in ROWS]
    assert sorted(found) == sorted(CASES) and len(CASES) == 31


@pytest.mark.parametrize(("symptom", "case", "path", "anchor"), ROWS, ids=[row[1] for row in ROWS])
def test_a_link_leads_to_a_heading(symptom, case, path, anchor):
    headings = [heading for cell in nbformat.read(ROOT / path, as_version=4).cells if cell.cell_type == "markdown"
                for heading in re.findall(r"^##+ (.+)$", cell.source, re.M)]
    assert anchor in {heading.replace(" ", "-") for heading in headings}
