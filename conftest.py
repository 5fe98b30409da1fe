"""pytest at the root: GPU tests are skipped with a reason, and nbval compares what it would otherwise let pass.

It lies here, not in tests/, so that it also holds for `pytest --nbval notebooks`. The nbval part replaces three of
nbval 0.11's own methods, hence the exact pin in environment.yml; tests/notebooks/test_nbval_holes.py shows that it
works.
"""

import os

import pytest
import torch
from nbval import kernel, plugin


@pytest.hookimpl(tryfirst=True)  # before the fixtures, which open the card
def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU, and PyTorch finds none here")
        if os.environ.get("CARD") == "simulated":
            pytest.skip("CARD=simulated: run it with `make gpu`")


def execute_cell_input(self, cell_input, allow_stdin=None):
    # nbval sends store_history=False, and then IPython prints the value of a cell that ends in ";".
    return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


original_get_message = kernel.RunningKernel.get_message


def get_message(self, stream, timeout=None):
    message = original_get_message(self, stream, timeout=timeout)
    if stream == "shell" and message["msg_type"] == "execute_reply":
        self.last_reply = message
    return message


original_runtest = plugin.IPyNbCell.runtest


def runtest(self):
    compared = self.config.option.nbval and not self.options["skip"]
    if compared and self.cell.source.strip() and self.cell.execution_count is None:
        self.raise_cell_error("The cell has no stored output to compare with: run `make notebooks`.")
    self.parent.kernel.last_reply = None
    original_runtest(self)
    # A cell can fail without an error message (an unknown magic), and one tagged raises-exception can fail to raise.
    reply = self.parent.kernel.last_reply
    failed = bool(reply) and reply["content"].get("status") == "error"
    if reply and failed != bool(self.options["check_exception"]):
        self.raise_cell_error("The cell failed without an error message." if failed
                              else "The cell is tagged raises-exception and raised nothing.")


kernel.RunningKernel.execute_cell_input = execute_cell_input
kernel.RunningKernel.get_message = get_message
plugin.IPyNbCell.runtest = runtest
