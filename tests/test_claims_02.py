"""What notebook 02 says about mixed precision. Its stored outputs are compared with a new run by nbval."""

import re

import pytest
import torch

from helpers import FusionConfig, GiB, open_card, parameter_count
from tests.notebook_cells import run_cells, stored_text

NAME = "02_mixed_precision"


@pytest.fixture(scope="module")
def cells():
    return run_cells(NAME, "imports", "training", "wide-run")


@pytest.fixture(scope="module")
def amp(cells):
    return open_card(kind="simulated").run(cells["training"](torch.float16), 4)


def test_a_quarter_and_not_a_half(cells, amp):
    larger = open_card(kind="simulated", capacity=40 * GiB)
    plain = larger.run(cells["training"](), 4)
    assert amp.peak_allocated == pytest.approx(19.9 * GiB, rel=0.02)
    assert 0.2 < 1 - amp.peak_allocated / plain.peak_allocated < 0.27
    half = larger.run(cells["training"](torch.bfloat16), 4)
    assert half.peak_allocated == pytest.approx(amp.peak_allocated, rel=0.001)


def test_there_is_no_room_for_batch_5(cells):
    assert not open_card(kind="simulated").run(cells["training"](torch.float16), 5).fits


def test_what_is_always_there_stays_float32(amp):
    for role in ("parameters", "gradients", "optimizer state"):
        assert {record.dtype for record in amp.live_at_peak if record.role == role} == {"float32"}
    floats = {record.dtype for record in amp.live_at_peak if record.role == "activations"}
    assert floats == {"float32", "float16", "bool"}


def test_weights_get_a_copy():
    """2 bytes for each parameter of a product, less what backward has used."""
    copies = float(re.search(r"copies of weights +float16 +([\d.]+)", stored_text(NAME, "kinds"))[1])
    assert 0.8 < copies * GiB / (2 * parameter_count(FusionConfig())) < 1


def test_softmax_stays_float32(amp):
    softmax = [record for record in amp.live_at_peak if record.operator == "aten._softmax"]
    assert len(softmax) == 9 and {record.dtype for record in softmax} == {"float32"}
    assert stored_text(NAME, "kinds").startswith("attention tables          float32")


def test_a_wide_model_at_a_tiny_batch_gets_bigger():
    saved = [float(value) for value in re.findall(r"saved (-?[\d.]+)%", stored_text(NAME, "sweep"))]
    assert saved[0] < 0 < saved[1] and saved == sorted(saved)
    change = [float(value) for value in re.findall(r"([+-][\d.]+) with", stored_text(NAME, "wide-run"))]
    assert change[0] > 0 and change[-1] < -1 and change == sorted(change, reverse=True)


def test_the_scaler():
    assert "65536 times smaller" in stored_text(NAME, "clip-run")
    skipped = stored_text(NAME, "skipped-run")
    assert re.findall(r": +(True|False)$", skipped, re.M) == ["True", "True", "False"]
    assert "`lr_scheduler.step()` before `optimizer.step()`" in skipped
    assert stored_text(NAME, "underflow").splitlines()[0].endswith(" 0.0")
    assert stored_text(NAME, "half") == "Attempting to unscale FP16 gradients.\n"


def test_float16_overflows_in_forward_and_bfloat16_does_not():
    assert stored_text(NAME, "t5-model").split()[-3:] == ["False", "bfloat16:", "True"]
    assert stored_text(NAME, "t5-cure").endswith("True\n")
    assert "weights: 1.0\n" in stored_text(NAME, "lost-updates")


def test_the_losses_lie_on_each_other():
    assert stored_text(NAME, "small-training").count("True") == 2


def test_amp_saves_least_of_the_four():
    peaks = dict(re.findall(r"^(\w+) +([\d.]+) GiB", stored_text("07_all_together", "measure-alone"), re.M))
    assert max(peaks, key=lambda name: float(peaks[name])) == "amp"


def test_old_calls_are_deprecated():
    assert stored_text(NAME, "old-call") == "['FutureWarning']\n"
