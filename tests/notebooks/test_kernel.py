"""In a notebook's kernel: after an out-of-memory error, an error and an interrupt, the next run works."""

import pathlib
import time

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parents[2]
SET_UP = """
import time, torch
from helpers import open_card
from tests.cuda_dispatch.rungs import training_function
card, train = open_card("RTX 3090", kind="simulated"), training_function()
"""


@pytest.fixture(scope="module")
def run_cell():
    notebook = nbformat.v4.new_notebook()
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}},
                            allow_errors=True)
    with client.setup_kernel():
        def run(source: str) -> str:
            cell = nbformat.v4.new_code_cell(source)
            notebook.cells.append(cell)
            client.execute_cell(cell, len(notebook.cells) - 1)
            return "".join(output.get("text", "") or output.get("evalue", "") for output in cell.outputs).strip()

        run.client = client
        assert run(SET_UP) == ""
        yield run


def test_after_running_out_of_memory(run_cell):
    assert run_cell("run = card.run(train, 4); print(run.fits, run.left_behind)") == "False 0"
    time.sleep(0.25)
    assert run_cell("print(card.run(train, 2).fits)") == "True"
    assert run_cell("card.empty_cache(); print(card.allocated < 2**25)") == "True"  # the cuBLAS workspaces


def test_after_an_error_that_the_notebook_shows(run_cell):
    cell = """
def breaks(device, batch_size):
    big = torch.zeros(2**30, device=device)
    big.backward()
card.run(breaks, 2)
"""
    assert "does not require grad" in run_cell(cell)
    assert run_cell("print(card.run(train, 2).left_behind)") == "0"


def test_after_an_interrupt(run_cell):
    """At thirty moments: in forward, in backward, in the optimizer step."""
    cell = """
import _thread, threading
def interrupted(delay):
    threading.Timer(delay, _thread.interrupt_main).start()
    try:
        for _ in range(5):
            card.run(train, 2)
    except KeyboardInterrupt:
        return True
    return False
print(all(interrupted(0.1 + 0.02 * i) for i in range(30)), card.run(train, 2).left_behind, card.allocated < 2**25)
"""
    assert run_cell(cell) == "True 0 True"
