"""Cases of gradient checkpointing, as people reported them (tests/cases/test_cases.py has the sources)."""

import functools
import logging
import warnings

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointError, CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from helpers import open_card
from helpers.features import switch_on_checkpointing

SMALL_VIT = transformers.ViTConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256,
                                   image_size=32, patch_size=8)
SMALL_T5 = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                 decoder_start_token_id=0)


@pytest.fixture(scope="module")
def card():
    return open_card(kind="simulated")


@pytest.fixture(autouse=True)
def quiet():
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    yield
    transformers.utils.logging.set_verbosity(before)


def train_vit(training_mode=True, frozen=False, *kwargs, **options):
    """kwargs, options: those of activation_checkpointing_enable; without any there is no checkpoint."""
    def train(device, batch_size):
        model = transformers.ViTModel(SMALL_VIT, add_pooling_layer=False).to(device).train(training_mode)
        if kwargs or options:
            switch_on_checkpointing(model, *kwargs, **options)
        model.embeddings.requires_grad_(not frozen)
        optimizer = torch.optim.AdamW(model.parameters())
        images = torch.randn(batch_size, 3, 32, 32, device=device)
        for _ in range(2):
            loss = model(pixel_values=images).last_hidden_state.square().mean()
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return train


def test_C1_in_eval_mode_hugging_face_does_not_checkpoint(card):
    peaks = {(mode, on): card.run(train_vit(mode, **({"every_n_layers": 1} if on else {})), 256).peak_allocated
             for mode in (True, False) for on in (True, False)}
    assert peaks[False, True] == peaks[False, False]
    assert peaks[True, True] < 0.5 * peaks[True, False]


def test_C1_checkpointing_turns_the_cache_off():
    model = transformers.T5ForConditionalGeneration(SMALL_T5)
    tokens = torch.randint(64, (1, 6))
    model.train()
    assert model(input_ids=tokens, labels=tokens, use_cache=True).past_key_values is not None
    switch_on_checkpointing(model)
    assert model(input_ids=tokens, labels=tokens, use_cache=True).past_key_values is None


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down, self.dropout = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64), dropout

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.dropout, self.training)


def gradients(wrap, dropout=0.0):
    """The gradients of 4 blocks and a head, each block called as wrap(block, x); None where there is none."""
    torch.manual_seed(0)
    model, head = nn.ModuleList(Block(dropout) for _ in range(4)), nn.Linear(64, 1)
    h = torch.randn(8, 64)  # as features from a frozen encoder: needs no gradient
    torch.manual_seed(1)
    for block in model:
        h = wrap(block, h)
    head(h).square().mean().backward()
    return [parameter.grad for parameter in [*model.parameters(), *head.parameters()]]


def test_C2_the_reentrant_kind_trains_nothing_behind_a_frozen_input():
    plain = gradients(lambda block, h: block(h))
    assert all(map(torch.equal, plain, gradients(functools.partial(checkpoint, use_reentrant=False))))
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        lost = gradients(functools.partial(checkpoint, use_reentrant=True))
    assert [gradient is None for gradient in lost] == [True] * (len(lost) - 2) + [False] * 2  # the head still learns


def test_C2_left_out_the_argument_warns_and_means_reentrant():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = checkpoint(nn.Linear(2, 2), torch.ones(1, 2))
    assert not y.requires_grad and any("use_reentrant" in str(warning.message) for warning in caught)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_C2_the_card_names_parameters_without_a_gradient(card):
    good = card.run(train_vit(frozen=True, every_n_layers=1), 64)
    bad = card.run(train_vit(True, True, {"use_reentrant": True}), 64, expect_gradients=False)
    assert good.without_gradient == () and len(bad.without_gradient) > 50
    assert bad.peak_allocated < 0.5 * good.peak_allocated  # a saving that is too good


def test_C5_recomputed_dropout_needs_the_same_masks():
    plain = gradients(lambda block, h: block(h), dropout=0.1)
    keep = gradients(functools.partial(checkpoint, use_reentrant=False), dropout=0.1)
    lose = gradients(functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False), dropout=0.1)
    assert all(map(torch.equal, plain, keep))
    flat = [torch.cat([gradient.flatten() for gradient in each]) for each in (plain, lose)]
    assert (flat[1] - flat[0]).norm() > 0.05 * flat[0].norm()


def test_C6_a_mode_that_flips_before_backward_is_an_error():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    y = checkpoint(model, torch.ones(2, 8, requires_grad=True), use_reentrant=False)
    model.eval()
    with pytest.raises(CheckpointError):
        y.sum().backward()


def keep_products(context, operator, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.skipif(torch.__version__ < "2.13", reason="before PyTorch 2.13 autocast's cache does no harm here")
def test_C6_selective_checkpoints_with_a_shared_weight_need_autocast_without_its_cache():
    layer = nn.Linear(8, 8)
    context = functools.partial(create_selective_checkpoint_contexts, keep_products)
    call = functools.partial(checkpoint, lambda x: layer(x).sin(), use_reentrant=False, context_fn=context)
    x = torch.ones(2, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = call(call(x))
    with pytest.raises(RuntimeError):
        y.float().sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        y = call(call(x))
    y.float().sum().backward()
    assert x.grad is not None


def test_C6_a_plain_checkpoint_brings_autocast_back():
    layer, dtypes = nn.Linear(8, 8), []
    layer.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(layer, torch.ones(2, 8, requires_grad=True), use_reentrant=False)
        y = checkpoint(torch.sin, y, use_reentrant=False)
    y.float().sum().backward()
    assert set(dtypes) == {torch.bfloat16} and layer.weight.grad.dtype == torch.float32
