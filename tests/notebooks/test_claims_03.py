"""What notebook 03 says about checkpointing. Its stored outputs are compared with a new run by nbval."""

import inspect
import re

import pytest
import transformers

from helpers import GiB, open_card
from tests.notebooks.notebook_cells import run_cells, source, stored_text

NAME = "03_gradient_checkpointing"


@pytest.fixture(scope="module")
def cells():
    return run_cells(NAME, "imports", "model", "training", "variants")


@pytest.fixture(scope="module")
def tried(cells):
    card = open_card(kind="simulated")
    return {name: card.run(cells["training"](model_class), 2) for name, model_class in cells["places"].items()}


def test_a_block_runs_twice_the_last_one_first():
    assert re.findall(r"block (\d)", stored_text(NAME, "twice-run")) == ["0", "1", "1", "0"]


def test_every_block_is_the_largest_saving(tried):
    text = stored_text(NAME, "measure-run")
    assert float(re.search(r"every block .*peak ([\d.]+)", text)[1]) == pytest.approx(8.3, rel=0.02)
    assert "largest batch: 3 and 20" in text
    assert min(tried, key=lambda name: tried[name].peak_allocated) == "every block"


@pytest.mark.parametrize("name", ["whole model", "each Linear"])
def test_the_wrong_place_saves_nothing(tried, name):
    assert tried[name].peak_allocated == pytest.approx(tried["none"].peak_allocated, rel=0.001)


@pytest.mark.parametrize(("name", "work"), [("every block", 4 / 3), ("whole model", 4 / 3), ("every third", 1 + 1 / 9),
                                            ("groups of 3", 1 + 2 / 9), ("each Linear", 1)])
def test_what_is_computed_again(tried, name, work):
    assert tried[name].flops / tried["none"].flops == pytest.approx(work, abs=0.01)


def test_attention_alone_is_cheap(tried):
    """Three quarters of the saving for little more than a quarter of the extra work."""
    none, attention, block = (tried[name] for name in ("none", "attention", "every block"))
    saved = (none.peak_allocated - attention.peak_allocated) / (none.peak_allocated - block.peak_allocated)
    assert saved == pytest.approx(0.75, abs=0.03)
    assert 0.25 < (attention.flops - none.flops) / (block.flops - none.flops) < 0.3


def test_the_time_is_a_third_more_by_the_roofline(tried):
    assert tried["every block"].estimated_seconds / tried["none"].estimated_seconds == pytest.approx(4 / 3, abs=0.03)


def test_the_peak_moves_from_the_last_tooth_to_the_first():
    small, large = stored_text(NAME, "gap-where").splitlines()
    assert "block 0" in small and "block 8" in large
    assert int(re.search(r"(\d+)%", small)[1]) > 90 > 10 > int(re.search(r"(\d+)%", large)[1])


def test_the_savings_of_mixed_precision_and_checkpoints_do_not_add_up():
    """Alone 6 GiB of 26; on top of checkpoints a tenth. One shortens a step, the other makes it longer."""
    alone = stored_text("02_mixed_precision", "larger-run"), stored_text("02_mixed_precision", "measure-run")
    plain, mixed = (float(re.search(r"fits, peak ([\d.]+)", text)[1]) for text in alone)
    assert plain - mixed == pytest.approx(6, abs=0.5) and plain == pytest.approx(26, abs=0.5)
    assert float(re.search(r"saved on top: ([\d.]+)", stored_text(NAME, "with-amp-run"))[1]) < 0.15 * (plain - mixed)
    assert float(re.search(r"\(roofline\): ([\d.]+)", alone[0])[1]) < 1
    assert float(re.search(r"\(roofline\): ([\d.]+)", stored_text(NAME, "cost-run"))[1]) > 1


def test_what_is_left_for_mixed_precision(cells):
    """The blocks' inputs stay float32."""
    names = {**cells, "every_block": open_card(kind="simulated").run(
        cells["training"](cells["CheckpointedTransformer"]), 4), "card": open_card(kind="simulated")}
    exec(source(NAME, "with-amp-run"), names)
    many = names["card"].run(names["with_both"], 16)  # here the peak is where all of them are waiting
    inputs = [record.dtype for record in many.live_at_peak if record.role == "activations"
              and record.operator == "aten.add" and record.shape == (80, 512, 1792)]
    assert inputs == ["float32"] * 9


def test_gradients_are_equal_with_dropout_and_not_with_other_masks():
    assert "dropout 0.1 - all gradients equal to the last bit: True" in stored_text(NAME, "result-run")
    assert stored_text(NAME, "dropout-run").endswith("True\n")


def test_the_reentrant_kind_trains_nothing_from_frozen_inputs():
    good, bad = stored_text(NAME, "frozen-run").splitlines()
    assert " 0 trainable" in good and int(re.search(r"(\d+) trainable", bad)[1]) > 100
    assert float(re.search(r"([\d.]+) GiB", bad)[1]) < 0.5 * float(re.search(r"([\d.]+) GiB", good)[1])


@pytest.mark.skipif(not hasattr(transformers.PreTrainedModel, "activation_checkpointing_enable"),
                    reason="this transformers still has the old name only, gradient_checkpointing_enable")
def test_the_name_that_hugging_face_has_today():
    enable = transformers.PreTrainedModel.activation_checkpointing_enable
    assert "every_n_layers" in inspect.signature(enable).parameters


def test_hugging_face_today():
    assert stored_text(NAME, "hf-old").startswith("TypeError")
    peaks = list(map(float, re.findall(r"([\d.]+) GiB", stored_text(NAME, "hf-run"))))
    assert peaks[:3] == sorted(peaks[:3], reverse=True) and peaks[3:] == sorted(peaks[3:], reverse=True)
    train, evaluate = map(float, re.findall(r"([\d.]+) GiB", stored_text(NAME, "hf-eval-run")))
    assert evaluate == peaks[0] and train == peaks[2]


def test_the_exercises():
    assert stored_text(NAME, "solution-document").startswith("Right")
    assert stored_text(NAME, "solution-half").startswith("Right")
    assert open_card(kind="simulated").capacity > 15 * GiB


def test_exercise_2_wants_less_work_and_less_memory(cells, tried, capsys):
    names = {**cells, "tried": tried, "card": open_card(kind="simulated")}
    for model_class, part in (("CheckpointedTransformer", "it computes 9% more than is allowed"),
                              ("EveryThird", "was to be below 15.00")):
        exec(source(NAME, "exercise-half").replace("training(CheaperTransformer)", f"training({model_class})"), names)
        assert part in capsys.readouterr().out, model_class
