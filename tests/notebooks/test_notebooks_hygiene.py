"""What holds for every notebook: format, outputs, headings, exercises, slides. nbval compares the outputs."""

import ast
import json
import pathlib
import re

import nbformat
import pytest
from student_copy import is_solution, needed_solutions, without_solutions

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 1_500_000  # bytes: code hosts stop to show notebooks that are much larger
EVERYWHERE = ["questions", "exercises", "keypoints"]
TECHNIQUE = ["questions", "the change", "predict", "measure", "explain the gap", "result", "exercises", "keypoints"]
OLD_CALLS = re.compile(r"torch\.cuda\.amp|gradient_checkpointing_enable\(|GradScaler\(\)")
MACHINE = re.compile(r"(?<![\w.:/])(?:/(?:home|root|tmp|usr|opt|var|mnt|srv|Users)/|[A-Z]:\\\\?\w)|site-packages")
NOT_COMPARED = {"nbval-skip", "nbval-ignore-output"}

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="there is no notebook yet")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def headings(notebook) -> list[tuple[int, str]]:
    """(level, text) of every heading, code blocks left out."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.S | re.M)
            found += [(len(marks), text) for marks, text in re.findall(r"^(#+) (.+)$", prose, flags=re.M)]
    return found


def test_format(path, notebook):
    nbformat.validate(notebook)
    ids = [cell.get("id") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert None not in ids and len(set(ids)) == len(ids)
    assert path.stat().st_size < LARGEST
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}, "no state of widgets, nothing of one machine"
    assert all("execution" not in cell.metadata for cell in notebook.cells)


def test_outputs_come_from_one_run_from_top_to_bottom(notebook):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run `make notebooks`"


def test_no_errors_and_nothing_on_stderr(notebook):
    for cell in code_cells(notebook):
        kinds = [output.output_type for output in cell.outputs]
        assert ("error" in kinds) == ("raises-exception" in tags(cell)), cell.source
        assert all(output.get("name") != "stderr" for output in cell.outputs), cell.source


def test_nothing_of_one_machine(notebook):
    for cell in notebook.cells:
        outputs = [output.get("text") or output.get("traceback") or
                   {kind: data for kind, data in output.get("data", {}).items() if not kind.startswith("image/")}
                   for output in cell.get("outputs", [])]
        for text in (cell.source, str(outputs)):
            assert not MACHINE.search(text), text
            assert str(ROOT) not in text and str(pathlib.Path.home()) not in re.split(r"[\s'\"]", text), text


def test_headings_are_in_order(notebook):
    levels = [level for level, _ in headings(notebook)]
    assert levels[0] == 1 and levels.count(1) == 1
    skipped = [pair for pair in zip(levels, levels[1:], strict=False) if pair[1] > pair[0] + 1]
    assert not skipped


def test_skeleton(path, notebook):
    """Every notebook opens with its card; sections come in the same order everywhere."""
    card = notebook.cells[0].source
    assert card.startswith("# ") and re.search(r"\d+ minutes", card)
    assert "needs" in card.lower() and "previous" in card.lower()
    wanted = TECHNIQUE if "02" <= path.stem[:2] <= "06" else EVERYWHERE
    found = [text.lower() for level, text in headings(notebook) if level == 2]
    position = 0
    for section in wanted:
        places = [number for number, text in enumerate(found) if section in text and number >= position]
        assert places, f"no heading of level 2 with {section!r} after {found[:position]}"
        position = places[0] + 1


def test_pictures_say_in_text_what_they_show(notebook):
    """For readers who do not see them, and because nbval compares text but no pictures."""
    for cell in code_cells(notebook):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            said = [output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs]
            assert any(text.strip() and not text.startswith("<") for text in said), cell.source
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"!\[\s*\]|<img(?![^>]*alt=\"[^\"]+\")", cell.source), cell.source


def test_plots_end_without_a_semicolon(notebook):
    for cell in code_cells(notebook):
        assert not cell.source.rstrip().endswith(";"), cell.source


def test_cells_that_are_not_compared_give_the_reason(notebook):
    for cell in code_cells(notebook):
        assert "NBVAL_" not in cell.source, "use a tag"
        if tags(cell) & NOT_COMPARED:
            assert re.search(r"# not compared: \w+", cell.source) or cell.metadata.get("reason"), cell.source


def test_old_calls_only_where_they_are_shown(notebook):
    for cell in code_cells(notebook):
        if "old-call" not in tags(cell):
            assert not OLD_CALLS.search(cell.source), cell.source


def test_exercises_and_solutions(path, notebook):
    """At least two exercises, each with its solution before the next one; no cell needs a solution."""
    order = ["solution" if is_solution(cell) else "exercise" for cell in code_cells(notebook)
             if is_solution(cell) or "exercise" in tags(cell)]
    assert order.count("exercise") >= 2
    assert re.fullmatch(r"(?:exercise (?:solution )+)+", " ".join([*order, ""])), order
    for cell in code_cells(notebook):
        if is_solution(cell):
            assert cell.metadata.get("jupyter", {}).get("source_hidden"), "a solution is folded until it is asked for"
        if "exercise" in tags(cell):
            constants = [node.value for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Constant)]
            assert ... in constants, "an exercise has a `...` to replace"
    assert needed_solutions(notebook) == []
    copy = without_solutions(nbformat.read(path, as_version=4))
    nbformat.validate(copy)
    assert len(copy.cells) == len(notebook.cells) - sum(map(is_solution, notebook.cells))


def test_every_cell_has_its_place_in_the_slides(notebook):
    kinds = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in notebook.cells]
    assert set(kinds) <= {"slide", "subslide", "fragment", "skip", "notes", "-"}, "run tests/tools/set_slides.py"
    assert kinds[0] == "slide"


def test_the_one_number_for_a_reader_in_a_hurry_is_one_that_the_notebook_prints(path, notebook):
    if not "01" <= path.stem[:2] <= "07":
        return
    card = notebook.cells[0].source
    line = re.search(r"<details><summary>In a hurry\?.*?</summary>\s*(.+?)\s*</details>", card, re.S)
    said = " ".join(output.get("text", "") + output.get("data", {}).get("text/plain", "")
                    for cell in code_cells(notebook) for output in cell.outputs)
    found = re.findall(r"\d+\.\d+|\b0(?= bytes)|\d+(?=%)|(?<=batch )\d+(?= fits)", line[1])
    assert found and "**" in line[1]
    assert not [number for number in found if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", said)]


def test_reading_takes_the_minutes_that_the_card_says(notebook):
    """180 words of text, 90 of code and 300 of output a minute: what the first notebooks took when they were read."""
    words = dict.fromkeys(("markdown", "code", "output"), 0)
    for cell in notebook.cells:
        if is_solution(cell):
            continue
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            words[cell.cell_type] += len(cell.source.split())
        words["output"] += sum(len(output.get("text", "").split()) for output in cell.get("outputs", []))
    minutes = words["markdown"] / 180 + words["code"] / 90 + words["output"] / 300
    assert minutes <= 1.15 * int(re.search(r"(\d+) minutes", notebook.cells[0].source)[1])
