"""What 01_reproduce_the_oom says in words, held against runs of its own code on the simulated card."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

from helpers import FusionTransformer, GiB, make_batch, parameter_count

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "01_reproduce_the_oom.ipynb"


@pytest.fixture(scope="module")
def said():
    """The names of the notebook after its cells that measure."""
    import torch

    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    patch, names = pytest.MonkeyPatch(), {}
    with patch.context() as environment:
        environment.setenv("CARD", "simulated")
        for cell in ("imports", "train", "batch-1", "guess", "sweep", "culprits-share", "bytes-per-document",
                     "compare-by-hand", "line-print", "larger-card", "two-steps-run"):
            names["failed"] = names.get("runs", {}).get(4)
            exec(cells[cell], names)
        names["train_without_none"] = without_none(torch, names)
    return names


def without_none(torch, names):
    def train(device, batch_size):
        model = FusionTransformer(names["config"]).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        batch = make_batch(names["config"], batch_size, device)
        for _ in range(2):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    return train


def test_it_stops_in_the_first_forward_pass_at_a_linear(said):
    failed = said["failed"]
    assert [run.fits for run in said["runs"].values()] == [True, True, True, False]
    assert failed.request.phase == "forward" and failed.timeline.step[failed.timeline.peak] == 0
    assert failed.roles_at_peak["gradients"] == failed.roles_at_peak["optimizer state"] == 0
    assert failed.request.operator == "aten.addmm" and failed.retries >= 1


def test_the_numbers_of_the_message(said):
    """Free and in use are the card; what is reserved without a tensor in it is small."""
    sizes = {}
    text = said["failed"].error
    for name, before in (("total", "capacity of "), ("free", "of which "), ("used", "process has "),
                         ("allocated", "Of the allocated memory "), ("unallocated", "by PyTorch, and ")):
        number, unit = text.split(before)[1].split()[:2]
        sizes[name] = float(number) * {"GiB": 1, "MiB": 1 / 1024}[unit]
    assert sizes["free"] + sizes["used"] == pytest.approx(sizes["total"], abs=0.02)
    assert sizes["unallocated"] < 0.02 * sizes["allocated"]
    assert said["needed"].peak_allocated - said["card"].capacity > 3 * GiB  # "several GiB" are missing


def test_half_of_it_are_attention_tables(said):
    assert all(record.shape == (20, 28, 512, 512) for record in said["failed"].culprits)
    assert said["tables"] / said["card"].capacity == pytest.approx(0.5, abs=0.02)
    by_hand = said["by_hand"]
    assert by_hand["attention tables"] / sum(by_hand.values()) == pytest.approx(0.5, abs=0.03)


def test_attention_keeps_more_than_the_rest(said):
    """The sentence of 00_anatomy: in memory, attention is the larger half."""
    run = said["runs"][2]
    activations = [record for record in run.live_at_peak if record.role == "activations"]
    attention = sum(record.bytes for record in activations if "attention" in record.module)
    assert attention > sum(record.bytes for record in activations) / 2


def test_the_account_by_hand(said):
    for name, size in said["by_hand"].items():
        assert said["measured"][name] == pytest.approx(size, rel=0.02)
    assert 1 < said["price"] / sum(said["by_hand"].values()) < 1.03
    tables = [record for record in said["runs"][2].live_at_peak if said["is_table"](record)]
    one = 2 * 5 * 28 * 512 * 512 * 4  # of two documents
    assert sum(record.bytes for record in tables) / 9 / one == pytest.approx(2.25, rel=0.01)


def test_the_straight_line(said):
    runs, once, price = said["runs"], said["once"], said["price"]
    assert once / parameter_count(said["config"]) == pytest.approx(12.3, abs=0.4)  # "about 12"
    assert once + 3 * price == pytest.approx(runs[3].peak_allocated, rel=0.01)
    assert once + 4 * price == pytest.approx(said["needed"].peak_allocated, rel=0.01)
    assert runs[2].roles_at_peak["gradients"] < 0.1 * runs[2].roles_at_peak["parameters"]
    full = said["card"].run(said["train_without_none"], 1)
    assert full.peak_allocated - runs[1].peak_allocated == pytest.approx(4 * parameter_count(said["config"]), rel=0.1)


def test_the_second_step_fails(said):
    run, state = said["run"], 8 * parameter_count(said["config"])
    assert not run.fits and run.batch_size == 2 and run.timeline.step[-1] == 1
    assert said["runs"][2].peak_allocated - said["first"] == pytest.approx(state, rel=0.02)


def test_a_kept_traceback_holds_the_card(said):
    import torch

    card, kept, train = said["card"], [], said["train"]

    def train_and_keep(device, batch_size):
        try:
            train(device, batch_size)
        except torch.OutOfMemoryError as error:
            kept.append(error)

    card.run(train_and_keep, 4, expect_gradients=False)
    card.empty_cache()
    assert card.allocated > 0.95 * card.capacity and not card.run(train, 2).fits
    kept[0].__traceback__ = None
    assert card.allocated < 2**25 and card.run(train, 2).fits
    card.empty_cache()


IPYTHON = {
    "define": """
import gc, weakref
class Thing: pass
def fails():
    global is_alive
    thing = Thing()
    is_alive = weakref.ref(thing)
    raise KeyError("x")
""",
    "show an error": "fails()",
    "kept": "print(is_alive() is not None)",
    "another": "1/0",
    "gone": "gc.collect(); print(is_alive() is None)",
    "caught": "try:\n    fails()\nexcept KeyError:\n    pass\nprint(is_alive() is None)",
    "display": "shown = Thing(); is_alive = weakref.ref(shown)\nshown",
    "xdel": "%xdel shown\nprint(is_alive() is None)",
    "display again": "shown = Thing(); is_alive = weakref.ref(shown)\nshown",
    "clear": "del shown\nOut.clear()\nprint(is_alive() is not None)",
    "semicolon": "shown = Thing(); is_alive = weakref.ref(shown)\nshown;",
    "deleted": "del shown\nprint(is_alive() is None)",
}


def test_what_ipython_keeps():
    cells = [nbformat.v4.new_code_cell(source) for source in IPYTHON.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=60).execute()
    printed = {name: "".join(output.get("text", "") for output in cell.outputs).strip()
               for name, cell in zip(IPYTHON, notebook.cells, strict=True)}
    assert {name: text for name, text in printed.items() if text} == dict.fromkeys(
        ("kept", "gone", "caught", "xdel", "clear", "deleted"), "True")
