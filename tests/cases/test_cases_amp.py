"""Cases of mixed precision, as people reported them (tests/cases/test_cases.py has the sources)."""

import inspect
import math
import warnings

import pytest
import torch
from torch import nn

from helpers import GiB, open_card

WIDTH, LAYERS = 2048, 6


@pytest.fixture(scope="module")
def card():
    return open_card(kind="simulated")


def wide(dtype=None, look=None):
    """Training of wide Linear layers; look(): called between forward and backward."""
    def train(device, batch_size):
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
        model = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(batch_size, WIDTH, device=device)
        for _ in range(2):
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                loss = model(x).square().mean()
            if look:
                look()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return train


def test_A1_autocast_adds_a_copy_of_each_weight_and_shrinks_activations_only(card):
    held = {}
    runs = {dtype: card.run(wide(dtype, lambda dtype=dtype: held.update({dtype: card.allocated})), 4)
            for dtype in (None, torch.float16)}
    # The first layer's input needs no gradient, so backward does not read its weight: no copy of it is kept.
    copies = 2 * (LAYERS - 1) * WIDTH**2
    assert held[torch.float16] - held[None] == pytest.approx(copies, rel=0.01)
    small, mixed = runs.values()
    assert mixed.peak_allocated > small.peak_allocated
    for role in ("parameters", "gradients", "optimizer state"):
        assert {record.dtype for record in mixed.live_at_peak if record.role == role} == {"float32"}
    large, mixed = (card.run(wide(dtype), 32_768).peak_allocated for dtype in (None, torch.float16))
    assert large / 2 < mixed < large


def test_A4_t5_overflows_in_float16_and_not_in_bfloat16():
    from transformers import T5Config, T5EncoderModel

    assert torch.tensor(66_246.0).half().isinf() and torch.tensor(66_246.0).bfloat16().isfinite()
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0)
    model, tokens = T5EncoderModel(config).eval(), torch.randint(64, (2, 16))
    wo, seen = model.encoder.block[0].layer[1].DenseReluDense.wo, []
    hook = wo.register_forward_hook(lambda module, inputs, output: seen.append(output.float().abs().max()))

    def encode(dtype=None):
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            return model(input_ids=tokens).last_hidden_state

    encode()
    with torch.no_grad():
        wo.weight *= 80_000 / seen[-1]
    right = encode()
    assert encode(torch.bfloat16).isfinite().all() and seen[-1].isfinite()
    assert not encode(torch.float16).isfinite().all() and seen[-1].isinf()  # it begins at this module
    hook.remove()
    plain = wo.forward

    def in_float32(x):
        with torch.autocast("cpu", enabled=False):
            return plain(x.float())

    wo.forward = in_float32
    assert torch.allclose(encode(torch.float16).float(), right, atol=0.02)


def test_A4_a_simulated_card_has_no_values_to_overflow(card):
    losses = []

    def train(device, batch_size):
        loss = (nn.Linear(4, 4).to(device)(torch.ones(batch_size, 4, device=device)) * 1e30).sum()
        loss.backward()
        losses.append(loss.item())

    card.run(train, 1)
    assert math.isnan(losses[0])  # it says "not known"


def scaled(model, value=1.0, scaler=None, parts=1):
    """Backward of a scaled loss; the scaler."""
    scaler = scaler or torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.full((1, 2), value)).sum() / parts).backward()
    return scaler


def test_A5_clipping_before_unscaling_clips_65536_times_too_hard():
    reported, applied = {}, {}
    for order in ("unscale first", "clip first"):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1.0), scaled(model, 5.0)
        if order == "unscale first":
            scaler.unscale_(optimizer)
        reported[order] = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        scaler.step(optimizer)
        applied[order] = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()
    assert reported["clip first"] / reported["unscale first"] == pytest.approx(65_536)
    assert applied["unscale first"] / applied["clip first"] == pytest.approx(65_536, rel=1e-3)


def test_A5_unscaling_in_every_part_is_an_error_and_mixes_gradients():
    model = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaled(model, parts=2)
    scaler.unscale_(optimizer)
    scaled(model, scaler=scaler, parts=2)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)
    assert model.weight.grad[0, 0] == 0.5 + 0.5 * 65_536  # and not 1


def test_A6_a_skipped_first_step_makes_no_state_and_warns_of_the_schedule():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    before, messages = model.weight.detach().clone(), {}
    scaler = torch.amp.GradScaler("cpu")
    for value in (float("inf"), 1.0, float("inf")):
        scale, number = scaler.get_scale(), len(messages)
        optimizer.zero_grad()
        scaled(model, value, scaler)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (scale / 2 if value > 1 else scale)
        if number == 0:
            assert torch.equal(model.weight, before) and len(optimizer.state) == 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedule.step()
        messages[number] = [str(warning.message) for warning in caught]
    assert "before `optimizer.step()`" in messages[0][0]
    assert messages[2] == []  # a later skip is silent


def test_A6_the_memory_jump_waits_for_the_first_step_that_is_taken(card):
    def training(taken):
        def train(device, batch_size):
            model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            x = torch.randn(batch_size, 1024, device=device)
            for take in taken:
                model(x).square().mean().backward()
                if take:
                    optimizer.step()
                optimizer.zero_grad()
        return train

    one, skipped, two = (card.run(training(taken), 16_384).peak_allocated
                         for taken in ((True,), (False, True), (True, True)))
    assert one == skipped
    assert two - skipped == pytest.approx(8 * 2 * 1024 * 4096, rel=0.02)


def test_A7_half_precision_parameters_and_the_scaler():
    model = nn.Linear(2, 2).half()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2).half()).sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.1))
    small = torch.tensor(1e-8)
    assert small.half() == 0 and small.bfloat16() != 0 and (small * 65_536).half() != 0
    weight = torch.ones((), dtype=torch.bfloat16)
    for _ in range(100):
        weight += 1e-3
    assert weight == 1  # and not 1.1


def test_A7_old_names_and_a_generous_answer():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.amp.autocast(enabled=False)
        torch.cuda.amp.GradScaler(enabled=False)
    assert sum(warning.category is FutureWarning for warning in caught) == 2
    assert inspect.signature(torch.cuda.is_bf16_supported).parameters["including_emulation"].default is True


def test_A7_a_simulated_run_never_measures_float32_by_accident(card):
    """Without CUDA `torch.autocast("cuda")` switches itself off; the card refuses it, and has autocast of its own."""
    def names_cuda(device, batch_size):
        with torch.autocast("cuda", dtype=torch.float16):
            nn.Linear(2, 2).to(device)(torch.ones(batch_size, 2, device=device)).sum().backward()

    with pytest.raises(RuntimeError, match="device.type"):
        card.run(names_cuda, 1)
    dtypes = []

    def by_device(device, batch_size):
        with torch.autocast(device.type, dtype=torch.float16):
            y = nn.Linear(2, 2).to(device)(torch.ones(batch_size, 2, device=device))
        dtypes.append(y.dtype)
        y.float().sum().backward()

    card.run(by_device, 1)
    assert dtypes == [torch.float16]


def test_A7_bfloat16_parameters_halve_what_is_always_there(card):
    def training(dtype):
        def train(device, batch_size):
            model = nn.Linear(4096, 4096).to(device, dtype)
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            for _ in range(2):
                model(torch.ones(batch_size, 4096, device=device, dtype=dtype)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return train

    full, half = (card.run(training(dtype), 1).peak_allocated for dtype in (torch.float32, torch.bfloat16))
    assert half / full == pytest.approx(0.5, abs=0.05) and full > 0.25 * GiB
