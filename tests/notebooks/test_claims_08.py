"""What 08_your_own_model says in words, held against runs of its own code on the simulated card."""

import contextlib
import functools
import io
import re

import nbformat
import pytest
import torch

from tests.notebooks.notebook_cells import NOTEBOOKS, stored_text

SOURCES = {cell.id: cell.source for cell in nbformat.read(NOTEBOOKS / "08_your_own_model.ipynb", as_version=4).cells}


class Notebook(dict):
    """The notebook's names, and what its cells print."""

    def execute(self, *ids) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for name in ids:
                exec(SOURCES[name], self)
        return printed.getvalue()


@pytest.fixture(scope="module")
def notebook():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARD", "simulated")
        names = Notebook()
        names.execute("imports", "train", "train-vit", "train-lm", "culprits")
        names.printed = names.execute("needed", "cures")
        yield names


def test_a_convolutional_net_is_all_activations(notebook):
    notebook.execute("convnet", "convnet-run")
    run = notebook["run"]
    sizes = run.roles_at_peak
    assert sizes["parameters"] + sizes["gradients"] + sizes["optimizer state"] < 0.03 * run.peak_allocated
    assert run.culprits[0].module == "0"  # "the first layers hold most"


def test_the_report_of_the_encoder(notebook):
    failed = notebook["failed"]
    assert not failed.fits and failed.timeline.step[failed.timeline.peak] == 0  # "never reached its optimizer step"
    wide = sum(record.bytes for record in failed.live_at_peak if record.shape[-1:] == (3072,))
    assert 0.44 < wide / sum(failed.roles_at_peak.values()) < 0.5  # "nearly half of it"
    assert "fused AdamW          does not fit" in notebook.printed


def test_what_the_cures_save(notebook):
    needed, peaks, times = notebook["needed"], {}, {}
    for name, change in notebook["cures"].items():
        run = notebook["card"].run(functools.partial(notebook["train_vit"], **change), 256)
        if run.fits:
            peaks[name], times[name] = run.peak_allocated / needed.peak_allocated, run.estimated_seconds
    assert 0.62 < peaks["bf16"] < 0.69 and times["bf16"] == min(times.values())  # a third, and first
    assert peaks["checkpointing"] < 0.25 and times["checkpointing"] > needed.estimated_seconds


def copies(notebook, **options):
    """Float32 copies of the logits alive at the peak, in bytes."""
    run = notebook["card"].run(functools.partial(notebook["train_lm"], **options), 4)
    one = 4 * 1024 * 50257 * 4
    return sum(record.bytes for record in run.live_at_peak if record.shape == (4096, 50257)) / one, run


def keeping_the_logits(head, hidden, words):
    logits = keeping_the_logits.kept = head(hidden)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def test_the_loss_needs_three_copies_of_the_logits(notebook):
    assert copies(notebook)[0] == pytest.approx(3, abs=0.01)
    assert copies(notebook, dtype=torch.bfloat16)[0] == pytest.approx(2.5, abs=0.01)
    assert copies(notebook, dtype=torch.bfloat16, checkpointing=True)[0] == pytest.approx(2.5, abs=0.01)
    plain, kept = copies(notebook)[1], copies(notebook, loss_of=keeping_the_logits)[1]
    del keeping_the_logits.kept
    assert kept.peak_allocated - plain.peak_allocated == pytest.approx(4096 * 50257 * 4, rel=0.01)  # the fourth


def test_batch_32_is_full_of_logits(notebook):
    assert not notebook["card"].run(notebook["train_lm"], 32).fits
    notebook.execute("lm-guess", "lm-measure")
    run = notebook["language_model"]
    logits = sum(record.bytes for record in run.live_at_peak if record.shape == (32 * 1024, 50257))
    assert logits > 0.8 * run.peak_allocated and run.timeline.phase[run.timeline.peak] == "backward"


def test_the_loss_in_pieces(notebook):
    notebook.execute("chunked")
    chunked, run = notebook["chunked"], notebook["language_model"]
    assert chunked.peak_allocated < run.peak_allocated / 3
    assert 1.03 < chunked.flops / run.flops < 1.12  # "a little more work"
    assert notebook.execute("chunked-same").endswith("True\n")


def test_a_checkpoint_on_the_card_is_a_second_model(notebook):
    lines = notebook.execute("resume-fails").splitlines()
    assert "fits" in lines[0] and "OUT OF MEMORY" in lines[1]
    times = {line.split()[0]: float(line.split()[1]) for line in notebook.execute("loading").splitlines()}
    assert times == {"onto_the_card": pytest.approx(2, abs=0.05), "by_way_of_the_cpu": pytest.approx(1, abs=0.02),
                     "built_on_meta": pytest.approx(1, abs=0.02)}
    assert "    saved = read_checkpoint" in SOURCES["resume-fails"]
    forgetting = SOURCES["resume-fails"].replace("load_state_dict(saved)", "load_state_dict(saved)\n    del saved")
    names = Notebook(notebook)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(forgetting, names)
    assert printed.getvalue().count("fits") == 2  # "gives the memory back for training"


def test_what_is_refused_has_a_sentence_and_a_way_out(notebook):
    said = dict(line.split(": ", 1) for line in notebook.execute("refused-run").splitlines())
    assert "branches on the value of a tensor" in said["branches"]
    assert "shape depends on values" in said["picks_by_value"]
    assert "cannot run nn.LSTM" in said["recurrent"] and ".to(device)" in said["names_cuda"]

    def instead(device, batch_size):
        scores = torch.ones(batch_size, device=device)
        torch.where(scores < 2, scores + 1, scores)
        torch.topk(scores * (scores > 0), 2)
        state = torch.nn.LSTMCell(64, 64).to(device)(torch.ones(batch_size, 64, device=device))
        assert state[0].shape == (batch_size, 64)

    assert notebook["card"].run(instead, 4, expect_gradients=False).fits


def test_apple_has_no_peak_counter(notebook):
    lines = notebook.execute("mps").splitlines()
    assert [line.split()[1] for line in lines] == ["there", "there", "there", "missing"]
    assert hasattr(torch.mps, "empty_cache") and hasattr(torch.cuda, "set_per_process_memory_fraction")


def test_the_llama_needs_no_temporaries_of_its_own_size(notebook):
    notebook.execute("llama")
    run = notebook["run"]
    assert not run.fits and run.request.phase == "optimizer step" and "_foreach_" in run.request.operator
    fits = notebook["card"].run(functools.partial(notebook["train_llama"], fused=True), 1)
    parameters = fits.roles_at_peak["parameters"] / 4
    assert 1.2e9 < parameters < 1.3e9 and fits.fits and 16 * parameters < fits.capacity


def test_the_colleague_does_not_train_the_encoder(notebook):
    assert "198 trainable parameters got no gradient" in notebook.execute("colleague")
    run = notebook["card"].run(notebook["train_colleague"], 256)
    assert all(not name.startswith("classifier") for name in run.without_gradient)
    adam = 8 * 86e6  # the part of the saving that is Adam's: small
    assert adam < 0.05 * (notebook["needed"].peak_allocated - run.peak_allocated)


def numbers(cell: str, pattern: str) -> dict[str, float]:
    return {label: float(value) for label, value in re.findall(pattern, stored_text("08_your_own_model", cell), re.M)}


def test_attention_kernels():
    peak = numbers("attention-kernels", r"^(\S.*?) +([\d.]+) GiB")
    growth = numbers("attention-kernels", r"^(\S.*?) +[\d.]+ GiB.* ([\d.]+) times as much$")
    assert peak["fused"] == peak["fused, padding mask"] < peak["your own softmax"] / 3
    assert peak["fused, bias for each head"] > 1.5 * peak["fused"]
    assert growth["your own softmax"] > 3.5 and growth["fused"] == 2.0
    weights = numbers("need-weights", r"need_weights=(\w+) +([\d.]+) GiB")
    assert weights["True"] > 2.5 * weights["False"]
