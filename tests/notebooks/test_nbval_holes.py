"""conftest.py makes nbval fail where it would pass: each hole has a notebook that falls into it."""

import pathlib
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = pathlib.Path(__file__).parents[2]
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}


def printed(text):
    return [new_output("stream", name="stdout", text=text)]


def tagged(cell, tag):
    cell.metadata["tags"] = [tag]
    return cell


HOLES = {
    "good": new_code_cell("print(1)", execution_count=1, outputs=printed("1\n")),
    "semicolon": new_code_cell("1 + 1;", execution_count=1),
    "wrong": new_code_cell("print(1)", execution_count=1, outputs=printed("2\n")),
    "never-run": new_code_cell("print(1)"),
    "unknown-magic": new_code_cell("%no_such_magic", execution_count=1),
    "raises-nothing": tagged(new_code_cell("x = 1", execution_count=1), "raises-exception"),
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Run nbval once over one notebook per hole; the file names of the notebooks that failed."""
    folder = tmp_path_factory.mktemp("holes")
    shutil.copy(ROOT / "conftest.py", folder)
    for name, cell in HOLES.items():
        nbformat.write(new_notebook(cells=[cell], metadata=KERNEL), folder / f"{name}.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=60", "-q", "-rf",
               "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize("name", HOLES)
def test_hole(outcome, name):
    failed = f"FAILED {name}.ipynb" in outcome
    assert failed == (name not in ("good", "semicolon")), outcome
