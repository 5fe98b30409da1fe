"""The tools around the notebooks: outputs are the same every time, solutions stay out of the student copy."""

import pathlib
import subprocess
import sys

import nbformat
import pytest
import run_notebooks
import set_slides
import student_copy
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

TOOLS = pathlib.Path(__file__).parents[1] / "tools"
PLOT = """import matplotlib.pyplot as plt
import ipywidgets
plt.plot([1, 2, 3])
plt.show()
ipywidgets.IntSlider(value=3)"""


def tool(name, *arguments):
    return subprocess.run([sys.executable, str(TOOLS / name), *map(str, arguments)], capture_output=True, text=True,
                          timeout=120)


def exercise(source, tag):
    cell = new_code_cell(source)
    cell.metadata["tags"] = [tag]
    return cell


@pytest.fixture
def folder(tmp_path):
    """A folder of notebooks with one exercise whose solution no other cell needs."""
    cells = [new_markdown_cell("# Title"), new_code_cell(PLOT), exercise("answer = ...\nprint(answer)", "exercise"),
             exercise("answer = 42\nprint(answer)", "solution"), new_code_cell("print('the end')")]
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (notebooks / "workshop.md").write_text("for teachers")
    (notebooks / "pages.txt").write_text("for everybody")
    nbformat.write(new_notebook(cells=cells), notebooks / "one.ipynb")
    return tmp_path


def test_a_second_run_changes_no_byte_and_check_sees_a_change(folder):
    path = folder / "notebooks" / "one.ipynb"
    assert "1 run, 1 rewritten" in tool("run_notebooks.py", path).stdout
    first = path.read_bytes()
    assert b"image/png" in first and b"widget-view" not in first and b"model_id" not in first
    assert "1 run, 0 rewritten" in tool("run_notebooks.py", path).stdout
    assert path.read_bytes() == first
    assert tool("run_notebooks.py", "--check", path).returncode == 0
    path.write_bytes(first.replace(b"the end", b"The End", 1))
    stale = path.read_bytes()
    assert tool("run_notebooks.py", "--check", path).returncode == 1
    assert path.read_bytes() == stale


def test_missing_ids_are_made_from_the_text(tmp_path):
    notebook = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("x = 1"), new_markdown_cell("# A")])
    path = tmp_path / "no_ids.ipynb"
    text = run_notebooks.write(notebook)
    for cell in notebook.cells:
        text = text.replace(f'   "id": "{cell.id}",\n', "")
    assert '"id"' not in text
    path.write_text(text)
    ids = [cell.id for cell in run_notebooks.read(path).cells]
    assert len(set(ids)) == 3 and ids == [cell.id for cell in run_notebooks.read(path).cells]


def test_the_student_copy_has_no_solutions_and_runs(folder):
    assert tool("run_notebooks.py", folder / "notebooks" / "one.ipynb").returncode == 0
    result = tool("student_copy.py", "--run", folder / "notebooks", folder / "student")
    assert result.returncode == 0 and "1 solution cells left out" in result.stdout
    copy = (folder / "student" / "one.ipynb").read_text()
    assert "answer = 42" not in copy and "answer = ..." in copy and "image/png" not in copy
    assert (folder / "student" / "pages.txt").exists() and not (folder / "student" / "workshop.md").exists()


def test_the_student_copy_replaces_only_its_own_folder(folder):
    other = folder / "mine"
    other.mkdir()
    assert tool("student_copy.py", folder / "notebooks", other).returncode == 2
    assert tool("student_copy.py", folder / "notebooks", folder / "notebooks").returncode == 2
    assert tool("student_copy.py", folder / "notebooks", folder / "student").returncode == 0
    assert tool("student_copy.py", folder / "notebooks", folder / "student").returncode == 0


def test_a_cell_that_depends_on_a_solution_is_seen(folder):
    path = folder / "notebooks" / "one.ipynb"
    notebook = run_notebooks.read(path)
    assert student_copy.needed_solutions(notebook) == []
    notebook.cells.append(new_code_cell("print(answer)"))
    path.write_text(run_notebooks.write(notebook))
    tool("run_notebooks.py", path)
    result = tool("student_copy.py", "--run", folder / "notebooks", folder / "student")
    assert result.returncode == 1 and "1 depend on a solution" in result.stdout
    notebook.cells[3].source = "only_here = 42"
    notebook.cells[-1].source = "def show(device):\n    print(device, only_here)"
    assert student_copy.needed_solutions(notebook) == ["cell 5: only_here"]


def test_slides_are_set_where_they_are_missing(folder):
    path = folder / "notebooks" / "one.ipynb"
    notebook = run_notebooks.read(path)
    notebook.cells[4].metadata["slideshow"] = {"slide_type": "fragment"}
    kinds = [set_slides.slide_type(cell) for cell in notebook.cells]
    assert kinds == ["slide", "-", "-", "skip", "-"]
    path.write_text(run_notebooks.write(notebook))
    assert tool("set_slides.py", path).returncode == 0
    stored = [cell.metadata.slideshow.slide_type for cell in run_notebooks.read(path).cells]
    assert stored == ["slide", "-", "-", "skip", "fragment"]


def test_the_ladder_in_the_readme_is_the_notebooks():
    result = tool("update_readme.py", "--check")
    assert result.returncode == 0, f"{result.stdout} make notebooks brings it up to date"
