"""Peaks that others measured on real GPUs and published, beside the simulated card's, by the code of notebook 09."""

import functools
import json
import math
import pathlib

import pytest
import torch

from helpers import GiB, MiB, open_card
from tests.notebooks.notebook_cells import run_cells

DATA = json.loads((pathlib.Path(__file__).parents[1] / "data" / "published_peaks.json").read_text())
GPT_PARTS = ["mask", "fused", "bfloat16", "layers", "sdpa"]
BERT = {setting: whole - DATA["bert"]["context_mib"] for setting, whole in DATA["bert"]["rows"]}
HABITS = frozenset({"softmax", "gradients", "adamw", "gelu"})


@pytest.fixture(scope="module")
def code():
    return run_cells(
        "09_how_exact", "setup", "gpt-pieces", "gpt-attention", "gpt-sdpa", "gpt-model", "gpt-whole", "gpt-train",
        "attention", "attention-measure", "bert-layer", "bert-model", "bert-habits", "bert-adamw", "bert-train")


@pytest.fixture(scope="module")
def v100():
    card = open_card("V100 16GB", kind="simulated")
    assert card.spec.total == 16160 * MiB and card.spec.context == DATA["bert"]["context_mib"] * MiB
    return card


@pytest.fixture(scope="module")
def bert(code, v100):
    @functools.cache
    def run(habits, setting, **options):
        train = code["train_bert"](habits, "checkpointing" in setting, "fp16" in setting, **options)
        return v100.run(train, 4 if "batch 4" in setting else 1)
    return run


@pytest.mark.parametrize("number", range(6))
def test_gpt2_reserved_within_a_fifth_of_a_per_cent(code, number):
    change, theirs = DATA["gpt2"]["rows"][number]
    run = open_card("A100 40GB", kind="simulated").run(code["train_gpt"](*GPT_PARTS[:number]), 8)
    assert run.peak_reserved / GiB == pytest.approx(theirs, rel=0.002), change


def test_gpt2_has_the_published_number_of_parameters(code):
    with torch.device("meta"):
        model = code["GPT"](GPT_PARTS)
    tied = sum(p.numel() for p in model.parameters()) - model.head.weight.numel()
    assert round(tied / 1e6) == 124


@pytest.mark.parametrize("row", DATA["attention"]["rows"], ids=lambda row: f"{row[0]}x{row[1]}")
def test_attention_to_the_last_digit(code, row):
    width, length, *theirs = row
    ours = code["attention_peaks"](open_card("A100 80GB", kind="simulated"), width, length, code["attention"])
    for published, simulated in zip(theirs, ours, strict=True):
        digit = 10.0 ** (math.floor(math.log10(published)) - 5)  # the table has six digits
        assert abs(published - simulated) <= 0.501 * digit


@pytest.mark.parametrize("setting", BERT)
def test_bert_of_2022_within_one_per_cent(bert, setting):
    run = bert(HABITS, setting)
    assert run.fits and run.peak_reserved / MiB == pytest.approx(BERT[setting], rel=0.01)


def test_one_micro_batch_stands_for_four(bert):
    one, four = bert(HABITS, "batch 1 x 4"), bert(HABITS, "batch 1 x 4", micro_batches=4)
    assert abs(one.peak_reserved - four.peak_reserved) <= 8 * MiB
    assert abs(one.peak_allocated - four.peak_allocated) <= MiB


def test_what_each_habit_of_2022_is_worth(bert):
    today, softmax = bert(frozenset(), "batch 4"), bert(frozenset({"softmax"}), "batch 4")
    both = bert(frozenset({"softmax", "gradients"}), "batch 4")
    assert today.peak_reserved / MiB == pytest.approx(BERT["batch 4"] * 0.79, rel=0.02)  # the gap: a fifth
    scores, parameters = 24 * 4 * 16 * 512 * 512 * 4, today.roles_at_peak["parameters"]
    assert softmax.peak_allocated - today.peak_allocated == pytest.approx(scores, rel=0.05)
    assert both.peak_allocated - softmax.peak_allocated == pytest.approx(parameters, rel=0.01)
    gelu, without = (bert(habits, "batch 4, fp16") for habits in (HABITS, HABITS - {"gelu"}))
    saved = gelu.roles_at_peak["activations"] - without.roles_at_peak["activations"]
    assert saved == pytest.approx(24 * 4 * 512 * 4096 * 2, rel=0.05)
    assert without.peak_reserved / MiB < BERT["batch 4, fp16"] * 0.97


def test_bert_has_the_parameters_of_bert_large(code):
    from transformers import BertConfig, BertForSequenceClassification

    large = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    with torch.device("meta"):
        models = BertForSequenceClassification(large), code["Bert"](HABITS, False)
    ours, theirs = (sorted(tuple(p.shape) for p in model.parameters()) for model in models)
    assert ours == theirs
