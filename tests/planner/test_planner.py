"""The planner: one sentence for what cannot be, the same bytes as the reader's own run, every control, and how fast."""

import asyncio
import base64
import dataclasses
import io
import time

import pytest
import torch

from helpers import open_snapshot
from helpers.cards.opening import open_card
from helpers.planner import planning as planner_module
from helpers.planner import widget as planner_widget
from helpers.planner.choices import OPTIMIZERS, Choices, make_choices, training_function
from helpers.planner.planning import plan, planning
from helpers.planner.widget import Planner, draw_timeline, in_html
from tests.cuda_dispatch.rungs import RUNGS
from tests.cuda_dispatch.rungs import training_function as rung
from tests.notebooks.notebook_cells import run_cells

WRONG = [
    ({"card": "RTX 9999"}, ValueError, "Unknown card 'RTX 9999'. Known cards: "),
    ({"batch": 0}, ValueError, "batch must be at least 1, got 0."),
    ({"batch": 2.5}, TypeError, "batch must be a whole number, got 2.5."),
    ({"seq_len": "512"}, TypeError, "seq_len must be a whole number, got '512'."),
    ({"depth": -1}, ValueError, "depth must be at least 1, got -1."),
    ({"width": 1000}, ValueError, "width must be a multiple of 7"),
    ({"heads": 30}, ValueError, "The joined width 1792 (vit_dim + t5_dim) cannot be divided into 30 heads."),
    ({"fusion": "sum"}, ValueError, "Unknown fusion 'sum'. Use one of: concat"),
    ({"precision": "int8"}, ValueError, "Unknown precision 'int8'. Use one of: fp32, fp16, bf16."),
    ({"optimizer": "Lion"}, ValueError, "Unknown optimizer 'Lion'. Use one of: AdamW"),
    ({"attention": "flash"}, ValueError, "Unknown attention 'flash'. Use one of: eager, sdpa."),
    ({"checkpointing": "yes"}, TypeError, "checkpointing must be True or False, got 'yes'."),
    ({"batch": 1, "accumulation": 2}, ValueError, "A batch of 1 cannot be cut into 2 micro-batches."),
    ({"sequence": 512}, TypeError, "There is no choice 'sequence'. There are: card, batch, seq_len"),
]


@pytest.fixture(scope="module")
def default():
    return plan()


@pytest.mark.parametrize(("choices", "kind", "sentence"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_values_get_one_sentence(choices, kind, sentence):
    with pytest.raises(kind) as caught:
        plan(**choices)
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


def test_it_is_the_run_of_the_notebooks_own_function():
    train = run_cells("08_your_own_model", "imports", "train")["train"]
    card = open_card(kind="simulated")
    for batch_size in (1, 3, 4):
        ours, theirs = next(planning(Choices(batch=batch_size))).run, card.run(train, batch_size)
        assert (ours.fits, ours.peak_allocated, ours.peak_reserved) == (
            theirs.fits, theirs.peak_allocated, theirs.peak_reserved)
        assert ours.timeline.allocated == theirs.timeline.allocated
        assert ours.roles_at_peak == theirs.roles_at_peak and ours.flops == theirs.flops


@pytest.mark.parametrize(("choices", "name"), [
    ({"precision": "bf16"}, "amp bf16"), ({"checkpointing": True}, "checkpointing"), ({"attention": "sdpa"}, "sdpa"),
    ({"fusion": "project-tokens"}, "project-tokens"), ({"accumulation": 2}, "accumulation 2 x 2"),
    ({"precision": "fp16", "checkpointing": True}, "amp fp16 + checkpointing")])
def test_each_technique_is_the_one_of_the_ladder(choices, name):
    """Within 3 %: the ladder's rungs clip, and make a batch for each micro-batch."""
    card = open_card(kind="simulated", capacity=2**40)
    ours = card.run(training_function(make_choices(**choices)), 4)
    assert ours.peak_allocated == pytest.approx(card.run(rung(**RUNGS[name]), 4).peak_allocated, rel=0.03)
    assert not ours.without_gradient and ours.left_behind == 0


def test_micro_batches_give_the_gradient_of_the_whole_batch(monkeypatch):
    """Five documents in two parts, three and two: each document counts as much as the others."""
    trained = []

    def optimizer(parameters):
        trained.append(list(parameters))
        return torch.optim.SGD(trained[-1], lr=0.1)

    monkeypatch.setitem(OPTIMIZERS, "SGD", (optimizer, {}))
    monkeypatch.setattr("torch.nn.functional.dropout", lambda x, *args: x)
    for accumulation in (1, 2):
        torch.manual_seed(0)
        choices = Choices(batch=5, seq_len=4, pages=2, depth=1, width=56, heads=7, optimizer="SGD",
                          accumulation=accumulation)
        training_function(choices)(torch.device("cpu"), 5)
    assert len(trained) == 2
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(*trained, strict=True))


def test_the_answer_is_what_was_run(default):
    card = open_card(kind="simulated")
    assert not default.run.fits and default.needed.fits
    assert default.largest == card.max_batch_size(training_function(default.choices)) == 3
    assert len(default.cures) == 3
    for cure in default.cures:
        again = card.run(training_function(dataclasses.replace(default.choices, **cure.changes)), 4)
        assert again.fits and again.peak_allocated == cure.run.peak_allocated
        assert cure.time == again.estimated_seconds / default.needed.estimated_seconds
        assert len(cure.changes) == 1 and cure.same_training  # there are enough of these
    assert [cure.time for cure in default.cures] == sorted(cure.time for cure in default.cures)


def test_where_no_single_switch_helps_it_tries_pairs():
    answer = plan(batch=8, seq_len=768, depth=6)
    assert [len(cure.changes) for cure in answer.cures].count(2) >= 1
    assert "SDPA + " in str(answer) and all(cure.run.fits for cure in answer.cures)


def test_where_nothing_helps_it_says_so():
    answer = plan(card="RTX 3060 12GB", depth=18, batch=1, width=3584, checkpointing=True)
    assert answer.largest == 0 and answer.cures == ()
    assert "No two switches make it fit" in str(answer) and "No two switches" in in_html(answer)


def test_a_choice_that_fits_needs_no_cure():
    answer = plan(batch=1)
    assert answer.run.fits and answer.cures == () and answer.needed is None
    assert str(answer).endswith("Largest batch: 3")


def test_a_run_is_not_repeated(default):
    before = planner_module.measure.cache_info()
    assert plan() == default
    assert planner_module.measure.cache_info().misses == before.misses


def test_old_cards_are_offered_fp16():
    names = [words for words, *_ in planner_module.switches(Choices(card="T4"))]
    assert "fp16" in names and "bf16" not in names


# -- the widget

MOVES = {"card": "T4", "batch": 5, "seq_len": 1024, "pages": 6, "depth": 10, "width": 1344, "heads": 14,
         "fusion": "project-add", "precision": "bf16", "checkpointing": True, "accumulation": 4, "attention": "sdpa",
         "optimizer": "SGD"}


@pytest.fixture(scope="module")
def widget():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner_widget, "IDLE", 60)  # the first pictures only
        yield Planner()


async def pictures_after(widget, name, value) -> list[float]:
    """Seconds from a change until the first picture is there: of work, and of waiting for more changes.

    Of this process's own work, so that other programs on the machine do not count.
    """
    times, start, at_work = [], time.perf_counter(), time.process_time()

    def arrived(change):
        times.append(min(time.process_time() - at_work + planner_widget.SETTLE, time.perf_counter() - start))

    for image in widget.images.values():
        image.observe(arrived, "value")
    widget.controls[name].value = value
    while widget.pictured != widget.choices():
        assert time.perf_counter() - start < 30, widget.verdict.value
        await asyncio.sleep(0.005)
    for image in widget.images.values():
        image.unobserve(arrived, "value")
    return times


def test_every_control_changes_the_pictures(widget):
    assert set(MOVES) == set(widget.controls) == {field.name for field in dataclasses.fields(Choices)}
    start, seen = {name: control.value for name, control in widget.controls.items()}, [widget.images["timeline"].value]
    widget.images["timeline"].observe(lambda change: seen.append(change.new), "value")

    async def run():
        for name, value in MOVES.items():
            before = len(seen)
            await pictures_after(widget, name, value)
            assert len(seen) == before + 1, name
        for name, value in start.items():
            widget.controls[name].value = value
        await pictures_after(widget, "batch", start["batch"])
        widget.close_task()

    asyncio.run(run())
    assert len(set(seen)) == 1 + len(MOVES) and seen[-1] == seen[0]


@pytest.fixture(scope="module")
def slower():
    """How many times slower than 0.24 s, where the planner was made, this machine runs the reference workload:
    at most two; a slower engine is what tests/measuring/test_benchmark.py would notice."""
    card, train = open_card(kind="simulated"), training_function(Choices())
    times = []
    for _ in range(4):
        start = time.perf_counter()
        card.run(train, 3)
        times.append(time.perf_counter() - start)
    return min(2, max(1, min(times) / 0.24))


@pytest.mark.timing
@pytest.mark.parametrize("name", MOVES)
def test_the_first_picture_comes_within_700_ms(widget, name, slower):
    """From the finished plan of the reference workload, with one control moved; the best of three."""
    async def run(again):
        if again:  # what was run before would come at once
            planner_module.measure.cache_clear()
            plan()
        start = widget.controls[name].value
        times = await pictures_after(widget, name, MOVES[name])
        await pictures_after(widget, name, start)
        widget.close_task()
        return times[0]

    assert any(asyncio.run(run(again)) < 0.7 * slower for again in (False, True, True))


def test_only_the_last_of_many_changes_is_computed(widget, monkeypatch):
    """A slider that is dragged: values that come while the kernel is busy or within a moment are passed over."""
    computed = []
    monkeypatch.setattr(planner_widget, "planning", lambda choices: computed.append(choices.batch) or planning(choices))

    async def drag():
        for batch in (5, 6, 7, 8):
            widget.controls["batch"].value = batch
            await asyncio.sleep(0)
        await pictures_after(widget, "batch", 9)
        await pictures_after(widget, "batch", 4)

    asyncio.run(drag())
    assert computed == [9, 4]


def test_the_rest_follows_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(planner_widget, "IDLE", 0.05)
    widget, ticks = Planner(batch=1, depth=2), []

    async def wait():
        widget.controls["depth"].value = 3
        await asyncio.sleep(0.01)
        while not widget.task.done():
            ticks.append(widget.plan.largest)
            await asyncio.sleep(0.01)

    asyncio.run(wait())
    assert widget.plan.largest == plan(batch=1, depth=3).largest
    assert f"<b>{widget.plan.largest}</b>" in widget.verdict.value
    assert ticks.count(None) > 2 and "…" not in widget.verdict.value  # others had their turn between the runs
    asyncio.run(pictures_after(widget, "depth", 2))
    widget.close()
    assert widget.task is None


def test_what_cannot_be_is_said_in_the_widget(widget):
    async def run():
        await pictures_after(widget, "accumulation", 4)
        widget.controls["batch"].value = 2
        await asyncio.sleep(0.2)
        complaint = widget.verdict.value
        assert widget.images["timeline"].layout.display == "none"
        await pictures_after(widget, "accumulation", 1)
        assert widget.images["timeline"].layout.display is None
        await pictures_after(widget, "batch", 4)
        widget.close_task()
        return complaint

    assert "A batch of 2 cannot be cut into 4 micro-batches." in asyncio.run(run())


def test_an_error_in_a_callback_is_shown(widget, monkeypatch):
    def fails(choices):
        raise RuntimeError("a <broken> thing")

    async def run():
        widget.controls["batch"].value = 5
        await asyncio.sleep(0.2)
        return widget.verdict.value

    with monkeypatch.context() as patch:
        patch.setattr(planner_widget, "planning", fails)
        assert "RuntimeError: a &lt;broken&gt; thing" in asyncio.run(run())
    asyncio.run(pictures_after(widget, "batch", 4))
    widget.close_task()


def test_a_picture_and_words_stand_where_widgets_do_not_work(widget):
    from PIL import Image

    data, metadata = widget._repr_mimebundle_()
    picture = data["image/png"]
    picture = picture if isinstance(picture, bytes) else base64.b64decode(picture)
    assert Image.open(io.BytesIO(picture)).width > 700 and metadata["image/png"]["width"] == 700
    assert data["text/plain"].startswith("Planner\nRTX 3090: batch 4") and " at 0x" not in data["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in data


def test_without_an_event_loop_it_answers_at_once():
    widget = Planner(batch=1, depth=1)
    widget.controls["depth"].value = 2
    assert widget.plan.choices.depth == 2 and widget.plan.largest is not None
    widget.controls["heads"].value = 14
    widget.controls["batch"].value = 1


def test_the_button_writes_the_snapshot_of_the_choice(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    planner = Planner(batch=1, depth=1)
    planner.save.click()
    assert "is written" in planner.saved.value
    snapshot = open_snapshot(tmp_path / planner_widget.SNAPSHOT)
    assert int(snapshot.reserved.max()) == planner.plan.run.peak_reserved
    planner.close()


def test_no_drop_down_lists(widget):
    names = {type(control).__name__ for control in widget.controls.values()}
    assert names == {"IntSlider", "SelectionSlider", "ToggleButtons"}


def test_the_picture_says_what_was_chosen(default):
    title = draw_timeline(default).axes[0].get_title(loc="left").replace("\n", " ")
    assert title == f"RTX 3090: {default.choices}"
