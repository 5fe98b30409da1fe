"""The reference model: its size, its shapes, its memory as the probe measured it, and one sentence for bad sizes."""

import dataclasses

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from helpers import GiB, open_card
from helpers.data import make_batch
from helpers.model import ATTENTIONS, FUSIONS, FusionConfig, FusionTransformer, parameter_count

TINY = FusionConfig.tiny()


def two_steps(config):
    def train(device, batch_size):
        model = FusionTransformer(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            loss, _ = model(**make_batch(config, batch_size, device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


@pytest.mark.parametrize(("fusion", "width", "heads", "tokens", "parameters"), [
    ("concat", 1792, 28, 512, 362_635_520), ("project-features", 1024, 16, 512, 123_207_680),
    ("project-tokens", 512, 8, 1024, 34_017_792), ("project-add", 512, 8, 512, 33_755_648)])
def test_sizes_of_the_reference_model(fusion, width, heads, tokens, parameters):
    config = FusionConfig(fusion=fusion)
    assert (config.width, config.n_heads, config.tokens, config.head_width) == (width, heads, tokens, 64)
    with torch.device("meta"):
        model = FusionTransformer(config)
    assert sum(p.numel() for p in model.parameters()) == parameter_count(config) == parameters


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_loss_and_logits_and_a_gradient_for_everything(fusion, attention):
    config = dataclasses.replace(TINY, fusion=fusion, attention=attention)
    model = FusionTransformer(config)
    batch = make_batch(config, 3, seed=0)
    loss, logits = model(**batch)
    assert logits.shape == (3, config.answers)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, batch["answer"]))
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == parameter_count(config)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_fused_attention_gives_the_same_answer(fusion):
    config = dataclasses.replace(TINY, fusion=fusion, attention="sdpa")
    eager, fused = FusionTransformer(dataclasses.replace(config, attention="eager")), FusionTransformer(config)
    fused.load_state_dict(eager.state_dict())
    batch = make_batch(config, 3, seed=0)
    torch.testing.assert_close(eager.eval()(**batch).logits, fused.eval()(**batch).logits)
    assert not torch.equal(eager.train()(**batch).logits, eager(**batch).logits)  # dropout is on in training only


def test_a_page_sees_no_other_page_and_every_token_of_its_own():
    config = dataclasses.replace(TINY, dropout=0.0)
    model, batch = FusionTransformer(config), make_batch(config, 2, seed=0)
    seen = []
    model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0].view(2, 3, 8, -1)))
    model(**batch)
    batch["t5"][0, 1, -1] += 1.0  # the last token of one page
    model(**batch)
    changed = (seen[0] != seen[1])[:, :, 0].any(-1)
    assert changed.tolist() == [[False, True, False], [False, False, False]]


def test_blocks_can_be_checkpointed_in_a_subclass():
    class Checkpointed(FusionTransformer):
        def run_blocks(self, h):
            for block in self.blocks:
                h = checkpoint(block, h, use_reentrant=False)
            return h

    gradients = []
    for kind in (FusionTransformer, Checkpointed):
        torch.manual_seed(0)
        model = kind(TINY)
        model(**make_batch(TINY, 2, seed=0)).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_without_an_answer_there_is_no_loss():
    batch = make_batch(TINY, 2, seed=0)
    loss, logits = FusionTransformer(TINY)(batch["vit"], batch["t5"])
    assert loss is None and logits.shape == (2, 16)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"fusion": "add"}, ValueError,
     "Unknown fusion 'add'. Use one of: concat, project-features, project-tokens, project-add."),
    ({"attention": "flash"}, ValueError, "Unknown attention 'flash'. Use one of: eager, sdpa."),
    ({"heads": 27}, ValueError, "The joined width 1792 .* cannot be divided into 27 heads."),
    ({"heads": 4, "fusion": "project-add"}, ValueError, "width 512 cannot be divided into heads of 448 features"),
    ({"pages": 0}, ValueError, "pages must be at least 1, got 0."),
    ({"seq_len": -1}, ValueError, "seq_len must be at least 1, got -1."),
    ({"depth": 2.5}, TypeError, "depth must be a whole number, got 2.5."),
    ({"depth": True}, TypeError, "depth must be a whole number, got True."),
    ({"answers": "8192"}, TypeError, "answers must be a whole number, got '8192'."),
    ({"t5_dim": 1, "vit_dim": 27, "fusion": "project-add"}, ValueError, "t5_dim must be at least 2 to project"),
    ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1, got 1.0.")])
def test_a_size_that_cannot_be_is_one_sentence(change, error, message):
    with pytest.raises(error, match=message):
        FusionConfig(**change)


def test_dropout_of_the_wrong_type_is_one_sentence():
    with pytest.raises(TypeError, match="dropout must be a number, got '0.1'."):
        FusionConfig(dropout="0.1")


# The whole range, its corners from both sides, and what cards of 6, 8, 12 and 16 GB leave for PyTorch.
CAPACITIES = [4.75, 5.2, 5.49, 5.5, 6.0, 6.49, 6.5, 7.0, 8.24, 8.25, 9.0, 9.99, 10, 10.8, 11.74, 11.75, 13.49, 13.5,
              14.6, 15.24, 15.25, 16.99, 17, 20, 22.5]


@pytest.mark.parametrize("gib", CAPACITIES)
def test_on_a_smaller_card_batch_2_trains_and_batch_4_does_not(gib):
    capacity = int(gib * GiB)
    train = two_steps(FusionConfig.for_card(capacity))
    assert open_card("RTX 3090", kind="simulated", capacity=int(0.93 * capacity)).run(train, 2).fits
    assert not open_card("RTX 3090", kind="simulated", capacity=int(1.07 * capacity)).run(train, 4).fits


def test_the_reference_card_and_larger_ones_get_the_reference_model():
    assert FusionConfig.for_card(int(22.5 * GiB)) == FusionConfig.for_card(80 * GiB) == FusionConfig()


@pytest.mark.parametrize(("capacity", "error", "message"), [
    (4 * GiB, ValueError, r"at least 4.75 GiB for PyTorch, got 4294967296 bytes \(4.00 GiB\)"),
    (22.5, ValueError, "got 22.5 bytes"), ("24 GB", TypeError, "capacity must be a number of bytes, got '24 GB'")])
def test_a_card_too_small_is_one_sentence(capacity, error, message):
    with pytest.raises(error, match=message):
        FusionConfig.for_card(capacity)
