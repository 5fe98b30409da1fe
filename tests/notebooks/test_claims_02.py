"""What notebook 02 says about mixed precision. Its stored outputs are compared with a new run by nbval."""

import re

import pytest
import torch

from helpers import FusionConfig, GiB, open_card, parameter_count
from tests.notebooks.notebook_cells import run_cells, stored_text

NAME = "02_mixed_precision"


@pytest.fixture(scope="module")
def cells():
    return run_cells(NAME, "imports", "training", "wide-run")


@pytest.fixture(scope="module")
def amp(cells):
    return open_card(kind="simulated").run(cells["training"](torch.float16), 4)


@pytest.fixture(scope="module")
def plain(cells):
    return open_card(kind="simulated", capacity=40 * GiB).run(cells["training"](), 4)


def activations(run):
    return run.roles_at_peak["activations"]


def test_a_quarter_and_not_a_half(cells, amp, plain):
    assert amp.peak_allocated == pytest.approx(19.9 * GiB, rel=0.02)
    assert 0.2 < 1 - amp.peak_allocated / plain.peak_allocated < 0.27
    assert stored_text(NAME, "larger-run").splitlines()[1] == "saved: 23%"
    larger = open_card(kind="simulated", capacity=40 * GiB)
    half = larger.run(cells["training"](torch.bfloat16), 4)
    assert half.peak_allocated == pytest.approx(amp.peak_allocated, rel=0.001)


def test_activations_lose_a_third_and_nothing_else_loses_anything(amp, plain):
    assert 1 - activations(amp) / activations(plain) == pytest.approx(1 / 3, abs=0.02)
    for role in ("parameters", "optimizer state"):
        assert amp.roles_at_peak[role] == plain.roles_at_peak[role]
    # What is more is the scaler's: its scale and its count of good steps, a block of 512 bytes each.
    assert amp.roles_at_peak["batch"] - plain.roles_at_peak["batch"] == 2 * 512
    assert amp.roles_at_peak["gradients"] >= plain.roles_at_peak["gradients"]


def test_for_time_it_does_more(amp, plain):
    """By the roofline estimate, which the notebook calls one; and a smaller model would do still more (07)."""
    assert amp.estimated_seconds / plain.estimated_seconds < amp.peak_allocated / plain.peak_allocated
    costs = stored_text("07_all_together", "costs")
    time = {name: float(share) for name, share in re.findall(r"^(\w+) .*step ([\d.]+)$", costs, re.M)}
    assert time["projection"] < time["amp"] < 1
    assert all(share >= 1 for name, share in time.items() if name not in ("amp", "projection"))


def test_there_is_no_room_for_batch_5(cells):
    assert not open_card(kind="simulated").run(cells["training"](torch.float16), 5).fits


def test_what_is_always_there_stays_float32(amp):
    for role in ("parameters", "gradients", "optimizer state"):
        assert {record.dtype for record in amp.live_at_peak if record.role == role} == {"float32"}
    floats = {record.dtype for record in amp.live_at_peak if record.role == "activations"}
    assert floats == {"float32", "float16", "bool"}


def test_temporaries_grew_by_two_float32_tables(cells, amp, plain):
    """Of softmax's backward. With them a third of the activations becomes a quarter of the whole."""
    tables = [record for record in amp.live_at_peak if record.role == "temporaries" and record.shape[-2:] == (512, 512)]
    assert [record.dtype for record in tables] == ["float32", "float32"]
    grown = amp.roles_at_peak["temporaries"] - plain.roles_at_peak["temporaries"]
    assert 0.6 * grown < sum(record.bytes for record in tables) < 1.5 * grown
    saved = plain.peak_allocated - amp.peak_allocated
    assert activations(plain) - activations(amp) > saved


def test_copies_that_are_not_there_at_the_peaks(cells, amp):
    """In training the head's and most of the last block's are used up; without gradients the last block is not done."""
    def copied(run):
        return {record.module for record in run.live_at_peak
                if record.operator == "aten._to_copy" and len(record.shape) == 2 and record.dtype != "float32"}

    assert {name for name in copied(amp) if name.startswith(("head", "blocks.8"))} == {"blocks.8.attention.qkv"}
    forward = run_cells(NAME, "imports", "copies-run")["cached"](True, False)
    copies = copied(open_card(kind="simulated").run(forward, 1, expect_gradients=False))
    assert {name for name in copies if name.startswith("blocks.8")} == {"blocks.8.attention.qkv"}


def test_where_the_scale_starts_and_how_it_moves():
    scaler = torch.amp.GradScaler("cpu")
    assert (scaler.get_scale(), scaler.get_backoff_factor(), scaler.get_growth_factor()) == (65536, 0.5, 2)
    assert scaler.get_growth_interval() == 2000


def test_weights_get_a_copy():
    """2 bytes for each parameter of a product, less what backward has used."""
    copies = float(re.search(r"copies of weights +float16 +([\d.]+)", stored_text(NAME, "kinds"))[1])
    assert 0.8 < copies * GiB / (2 * parameter_count(FusionConfig())) < 1


def test_backward_holds_the_copies_and_not_the_cache():
    costs = dict(re.findall(r"^(\w+) +the cache costs ([\d.]+) GiB", stored_text(NAME, "copies-run"), re.M))
    assert costs["training"] == "0.00"
    assert 0.8 < float(costs["no_grad"]) * GiB / (2 * parameter_count(FusionConfig())) < 1


def test_without_the_cache_each_call_makes_a_copy():
    card, held, width = open_card(kind="simulated"), {}, 2048

    def training(cache):
        def train(device, batch_size):
            layer = torch.nn.Linear(width, width, bias=False).to(device)
            x = torch.randn(batch_size, width, device=device, requires_grad=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cache):
                for _ in range(4):
                    x = layer(x)
                loss = x.sum()
            held[cache] = card.allocated
            loss.backward()
        return train

    for cache in (True, False):
        card.run(training(cache), 1)
    assert held[False] - held[True] == pytest.approx(3 * 2 * width**2, rel=0.01)


def test_softmax_stays_float32(amp):
    softmax = [record for record in amp.live_at_peak if record.operator == "aten._softmax"]
    assert len(softmax) == 9 and {record.dtype for record in softmax} == {"float32"}
    assert stored_text(NAME, "kinds").startswith("attention tables          float32")


def test_a_wide_model_at_a_tiny_batch_gets_bigger():
    saved = [float(value) for value in re.findall(r"saved (-?[\d.]+)%", stored_text(NAME, "sweep"))]
    assert saved[0] < 0 < saved[1] and saved == sorted(saved)
    between, peak = ([float(value) for value in re.findall(pattern, stored_text(NAME, "wide-run"))]
                     for pattern in (r"([+-][\d.]+) GiB between", r"([+-][\d.]+) at the peak"))
    for change in (between, peak):
        assert change[0] > 0 and change[-1] < -1 and change == sorted(change, reverse=True)
    assert between[0] * GiB == pytest.approx(7 * 2 * 4096**2, rel=0.05)  # the first weight is not read again
    assert peak[0] < between[0] / 4


def test_what_a_wide_model_holds_more_at_its_peak_is_one_gradient_in_16_bits(cells):
    card = open_card(kind="simulated")
    full, mixed = (card.run(cells["wide"](dtype, {}), 64) for dtype in (None, torch.bfloat16))
    for run in (full, mixed):
        assert run.timeline.phase[run.timeline.peak] == "backward"
        assert run.roles_at_peak["gradients"] == pytest.approx(8 * 4 * (4096**2 + 4096), rel=0.001)
    half = [record for record in mixed.live_at_peak if record.shape == (4096, 4096) and record.dtype == "bfloat16"]
    assert [(record.role, record.phase) for record in half] == [("temporaries", "backward")]
    assert "_to_copy" not in half[0].operator  # a product's result, and no copy of a weight
    assert mixed.peak_allocated - full.peak_allocated == pytest.approx(half[0].bytes, rel=0.1)


def test_the_scaler():
    assert "65536 times smaller" in stored_text(NAME, "clip-run")
    skipped = stored_text(NAME, "skipped-run")
    assert re.findall(r": +(True|False)$", skipped, re.M) == ["True", "True", "False", "True"]
    assert "`lr_scheduler.step()` before `optimizer.step()`" in skipped
    assert stored_text(NAME, "underflow").splitlines()[0].endswith(" 0.0")
    assert stored_text(NAME, "half") == "Attempting to unscale FP16 gradients.\n"


def test_adam_hides_a_clip_at_the_wrong_place_only_in_part():
    text = stored_text(NAME, "clip-moved")
    share = {name: float(value) for name, value in re.findall(r"^(\w+) +clipped .* moves (\S+) times", text, re.M)}
    assert share["SGD"] < 1e-4 and 0.3 < share["AdamW"] < 0.9
    small, reference = (float(value) for value in re.findall(r"is (\S+) for each parameter", text))
    assert reference < 1e-8 < small  # Adam's eps
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1.0, weight_decay=0)
    assert optimizer.defaults["eps"] == 1e-8
    weight.grad = torch.tensor([reference])
    optimizer.step()
    assert 0 < abs(weight.item()) < 0.1  # and not 1, the learning rate


def test_a_second_unscale_is_an_error_and_mixes_gradients():
    error, gradient = stored_text(NAME, "unscale-twice").splitlines()
    assert error.startswith("unscale_() has already been called on this optimizer")
    assert float(gradient.split()[-1]) == 0.5 + 0.5 * 65_536


def test_float16_overflows_in_forward_and_bfloat16_does_not():
    assert stored_text(NAME, "t5-model").split()[-3:] == ["False", "bfloat16:", "True"]
    assert stored_text(NAME, "t5-cure").endswith("True\n")
    assert "weights: 1.0\n" in stored_text(NAME, "lost-updates")


def test_under_autocast_t5s_clamp_does_not_act():
    """It looks at hidden states of float16; under autocast they are float32, and infinite."""
    names, seen = run_cells(NAME, "imports", "t5-model"), []
    names["t5"].encoder.block[0].register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    names["finite"](torch.float16)
    assert seen[0].dtype == torch.float32 and not seen[0].isfinite().all()


def test_no_scale_helps_against_an_overflow_in_forward():
    """Exercise 3: the scale falls at every step and no weight changes."""
    names = run_cells(NAME, "imports", "t5-model")
    model, tokens = names["t5"], names["tokens"]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer, scaler, scales = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu"), []
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(tokens).last_hidden_state.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    assert scales == [32_768, 16_384, 8_192]
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(("parameters", "autocast", "scaled", "refused"), [
    (torch.float32, torch.float16, True, False), (torch.float32, torch.float16, False, False),
    (torch.float32, torch.bfloat16, False, False), (torch.float32, torch.bfloat16, True, False),
    (torch.float16, None, True, True), (torch.float16, torch.float16, True, True),
    (torch.bfloat16, None, False, False), (torch.bfloat16, None, True, False)])
def test_the_table_of_combinations(parameters, autocast, scaled, refused):
    """On a CPU; what CUDA does with bfloat16 parameters and a scaler is told as a report."""
    model = torch.nn.Linear(4, 4).to(parameters)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=scaled)
    before = model.weight.detach().clone()
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        output = model(torch.ones(1, 4, dtype=parameters))
    scaler.scale(output.float().mean() / 64).backward()  # 65536 itself would be infinite in float16: a skipped step
    if refused:
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scaler.step(optimizer)
    else:
        scaler.step(optimizer)
        assert not torch.equal(before, model.weight)


def test_the_losses_lie_on_each_other():
    assert stored_text(NAME, "small-training").count("True") == 2


def test_a_cpu_leaves_softmax_and_layer_norm_in_16_bits():
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.softmax(x, -1).dtype == torch.nn.functional.layer_norm(x, (2,)).dtype == torch.bfloat16


def test_amp_saves_least_of_the_four():
    peaks = dict(re.findall(r"^(\w+) +([\d.]+) GiB", stored_text("07_all_together", "measure-alone"), re.M))
    assert len(peaks) == 4 and max(peaks, key=lambda name: float(peaks[name])) == "amp"


def test_old_calls_are_deprecated():
    assert stored_text(NAME, "old-call") == "['FutureWarning']\n"
