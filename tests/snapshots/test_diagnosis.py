"""Each trouble is recognised as what it is, and not as one of the others."""

import pathlib

import pytest
import torch

from helpers import FusionConfig, FusionTransformer, GiB, make_batch, open_card, open_snapshot
from helpers.cards.catalogue import CARDS
from helpers.measuring.snapshot_file import snapshot_of
from helpers.snapshots import diagnosis
from helpers.snapshots.reading import read
from helpers.snapshots.snapshot import Snapshot
from tests.snapshots.files import of_orders

PREPARED = pathlib.Path(__file__).parents[2] / "notebooks" / "snapshots"
TOTAL = {"a": CARDS["RTX 3060 12GB"].total, "b": CARDS["RTX 3090"].total, "c": CARDS["RTX 3090"].total}


def training(steps=2, keep=None, optimizer=torch.optim.AdamW, depth=2, accumulation=1):
    def train(device, batch_size):
        model = FusionTransformer(FusionConfig(depth=depth)).to(device)
        chosen, kept = optimizer(model.parameters()), []
        for _ in range(steps):
            for _ in range(accumulation):
                output = model(**make_batch(FusionConfig(), batch_size, device))
                output.loss.backward()
                if keep:
                    kept.append(keep(model, output, device))
            chosen.step()
            chosen.zero_grad()
    return train


def snapshot_after(train, batch_size, capacity, total=None) -> Snapshot:
    run = open_card(kind="simulated", capacity=capacity).run(train, batch_size, record_history=True,
                                                             expect_gradients=False)
    return Snapshot(read(snapshot_of(run.history, not run.fits)), total)


def a_map(model, output, device):
    return torch.empty(300, 2**20, device=device)


@pytest.mark.parametrize(("name", "trouble"), [
    ("a", diagnosis.LEAK), ("b", diagnosis.FRAGMENTATION), ("c", diagnosis.SOMEBODY)])
def test_the_prepared_ones(name, trouble):
    snapshot = open_snapshot(PREPARED / f"{name}.pickle", TOTAL[name])
    assert snapshot.reading.name == trouble
    assert str(snapshot).count("\n") == 1


def test_the_reference_failure_is_a_peak():
    snapshot = snapshot_after(training(depth=9), 4, int(22.5 * GiB), CARDS["RTX 3090"].total)
    assert snapshot.reading.name == diagnosis.PEAK and not snapshot.leaks
    assert "total=" not in snapshot.reading.why


def test_a_peak_without_the_cards_size_says_what_it_cannot_know():
    reading = snapshot_after(training(), 4, 4 * GiB).reading
    assert reading.name == diagnosis.PEAK and "give total=" in reading.why


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, lambda parameters: torch.optim.SGD(parameters, lr=0.01)],
                         ids=["AdamW", "SGD"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_leak_in_training(optimizer, accumulation):
    snapshot = snapshot_after(training(30, a_map, optimizer, accumulation=accumulation), 1, 9 * GiB, int(9.6 * GiB))
    assert snapshot.reading.name == diagnosis.LEAK
    assert snapshot.leaks[0].line.endswith("in a_map") and snapshot.leaks[0].per_step >= 300 * 2**22


def test_training_that_fails_late_for_another_reason_is_no_leak():
    snapshot = snapshot_after(training(8), 1, 30 * GiB)
    assert snapshot.failure is None and snapshot.leaks == [] and snapshot.reading.name == diagnosis.NONE


def test_a_leak_that_has_not_failed_yet_is_told():
    snapshot = snapshot_after(training(8, a_map), 1, 30 * GiB)
    assert snapshot.failure is None and snapshot.reading.name == diagnosis.LEAK


def test_a_leak_in_validation_has_no_optimizer_to_count_steps_by():
    def validate(device, batch_size):
        model, losses = FusionTransformer(FusionConfig(depth=2)).to(device).eval(), []
        for _ in range(20):
            losses.append(model(**make_batch(FusionConfig(), batch_size, device)).loss)

    snapshot = snapshot_after(validate, 1, 9 * GiB, int(9.6 * GiB))
    assert snapshot.failure and snapshot.reading.name == diagnosis.LEAK


def test_one_forward_pass_over_many_equal_blocks_is_no_leak():
    snapshot = snapshot_after(training(depth=9), 1, 5 * GiB, int(5.6 * GiB))
    assert snapshot.failure and snapshot.reading.name == diagnosis.PEAK


def test_a_limit_that_refuses_on_an_empty_card():
    snapshot = of_orders([600 * 2**20, 600 * 2**20], 2**30)
    place = snapshot.recording.failures[-1]
    snapshot = Snapshot(snapshot.recording)
    snapshot.recording.failures[-1] = (place[0], 70 * GiB, place[2])
    assert Snapshot(snapshot.recording, 80 * GiB).reading.name == diagnosis.LIMIT


def test_somebody_else_needs_the_size_of_the_card():
    assert open_snapshot(PREPARED / "c.pickle").reading.name == diagnosis.PEAK
    assert open_snapshot(PREPARED / "c.pickle").others is None
    with pytest.raises(ValueError, match="24 \\* GiB"):
        open_snapshot(PREPARED / "c.pickle", total=24)
