"""The code of a notebook for tests: what a reader runs is what is tested."""

import contextlib
import io
import os
import pathlib

import nbformat

NOTEBOOKS = pathlib.Path(__file__).parents[2] / "notebooks"


def run_cells(name: str, *ids: str) -> dict:
    """Execute the code cells of notebook `name` named by `ids`, in its folder; the names they define."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    names, before = {"__name__": name}, os.getcwd()
    os.chdir(NOTEBOOKS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for cell in notebook.cells:
                if cell.cell_type == "code" and cell.id in ids:
                    exec(compile(cell.source, f"{name}:{cell.id}", "exec"), names)
    finally:
        os.chdir(before)
    return names


def stored_text(name: str, cell_id: str) -> str:
    """What the cell printed, as the notebook stores it (and as every test run compares it with a new run)."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return "".join(output["text"] for output in cell.outputs if output["output_type"] == "stream")


def source(name: str, cell_id: str) -> str:
    """The code, or the text, of a cell."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    return next(cell.source for cell in notebook.cells if cell.id == cell_id)
