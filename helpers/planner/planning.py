"""The planner's answers: what the reference model needs with other sizes and techniques, found by running it.

`plan(batch=4, precision="bf16")` trains two steps on a simulated card, searches the largest batch, and, where the
choice does not fit, runs it again with one or two switches changed. `helpers.planner.widget` shows it in a notebook.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from helpers.cards.base import Card
from helpers.cards.catalogue import find_card
from helpers.cards.opening import open_card
from helpers.measuring.run import Run
from helpers.planner.choices import Choices, make_choices, training_function
from helpers.units import GiB, format_bytes

ENOUGH = 3  # cures that are shown
NO_LIMIT = 2**45  # bytes


@dataclasses.dataclass(frozen=True)
class Cure:
    """Switches that make a choice fit. changes: field of `Choices` -> value; what: the same in words.

    same_training: whether what is learned stays the same, up to rounding. time: of an optimizer step, relative to the
    choice without them, an estimate (helpers/measuring/roofline.py).
    """

    what: str
    changes: dict
    same_training: bool
    run: Run
    time: float

    def __str__(self) -> str:
        other = "" if self.same_training else ", but another model or optimizer"
        return (f"{self.what}: peak {self.run.peak_allocated / GiB:.2f} GiB, {self.time:.2f} times the time of a step "
                f"(estimate){other}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What became of a choice.

    needed: the same run on a card without a limit, where the choice does not fit. largest: batch size that fits. cures:
    the cheapest first, at most three; empty where the choice fits or nothing helps. All None until they are known.
    """

    choices: Choices
    run: Run
    needed: Run | None = None
    largest: int | None = None
    cures: tuple[Cure, ...] | None = None

    @property
    def verdict(self) -> str:
        run, free = self.run, self.run.capacity - self.run.peak_reserved
        if run.fits:
            return (f"It fits: {run.peak_allocated / GiB:.2f} GiB at the peak, {format_bytes(free)} of "
                    f"{run.capacity / GiB:.2f} GiB never used.")
        held = sum(run.roles_at_peak.values())
        where = f"{run.request.phase} of step {run.timeline.step[run.timeline.peak] + 1}"
        return (f"Out of memory in {where}: {held / GiB:.2f} of {run.capacity / GiB:.2f} GiB allocated, "
                f"{format_bytes(run.request.bytes)} more asked for.")

    def __str__(self) -> str:
        lines = [f"{self.choices.card}: {self.choices}", self.verdict]
        if self.needed is not None:
            lines.append(f"It would need {self.needed.peak_reserved / GiB:.2f} GiB.")
        if self.largest is not None:
            lines.append(f"Largest batch: {self.largest}")
        if self.cures:
            lines += ["It would fit with", *(f"  {cure}" for cure in self.cures)]
        elif self.cures is not None and not self.run.fits:
            lines.append("No two switches make it fit: choose a smaller batch, model or sequence.")
        return "\n".join(lines)


def plan(**choices) -> Plan:
    """The whole answer for these choices (fields of `Choices`; what is left out is the reference workload)."""
    *_, last = planning(make_choices(**choices))
    return last


def planning(choices: Choices) -> Iterator[Plan]:
    """The answer as it grows: a `Plan` after every run on the card, so that a notebook's kernel can do something else
    between two of them. The first has the run of the choice itself."""
    so_far = Plan(choices, measure(choices, choices.batch))
    yield so_far
    if not so_far.run.fits:
        so_far = dataclasses.replace(so_far, needed=measure(choices, choices.batch, NO_LIMIT))
        yield so_far
    known = {choices.batch: so_far.run}
    while (largest := look_up(so_far.run.capacity, known)) is None:
        guess = known.pop("wanted")
        known[guess] = measure(choices, guess)
        yield so_far
    so_far = dataclasses.replace(so_far, largest=largest)
    yield so_far
    found = []
    for cure in [] if so_far.run.fits else try_cures(choices, so_far.needed.estimated_seconds):
        found += [cure] if cure else []
        yield so_far
    found.sort(key=lambda cure: (not cure.same_training, cure.time))
    yield dataclasses.replace(so_far, cures=tuple(found[:ENOUGH]))


@functools.lru_cache(maxsize=64)
def measure(choices: Choices, batch_size: int, capacity: int | None = None) -> Run:
    """The run of a choice on a card of its own; one of the last is not run again, since it would give the same."""
    return open_card(choices.card, kind="simulated", capacity=capacity).run(training_function(choices), batch_size)


def save_snapshot(choices: Choices, path) -> None:
    """Write the memory snapshot of a choice's run, recorded anew; it gives the same."""
    card = open_card(choices.card, kind="simulated")
    card.run(training_function(choices), choices.batch, record_history=True).save_snapshot(path)


class KnownRuns(Card):
    """A card that knows some answers: lets `max_batch_size` say which batch size it wants to see run next."""

    def __init__(self, capacity: int, known: dict):
        self.capacity, self.known = capacity, known

    def run(self, train, batch_size):
        return self.known[batch_size]


def look_up(capacity: int, known: dict) -> int | None:
    """The largest batch size if `known` (batch size -> run) decides it; else None, and known["wanted"] says what is
    missing."""
    try:
        return KnownRuns(capacity, known).max_batch_size(None)
    except KeyError as missing:
        known["wanted"] = missing.args[0]
        return None


def switches(choices: Choices) -> list[tuple[str, dict, bool]]:
    """What could be changed: (words, changes, whether the training stays the same)."""
    half = "bf16" if find_card(choices.card).compute_capability >= (8, 0) else "fp16"  # before Ampere bf16 is emulated
    found = [("SDPA", {"attention": "sdpa"}, True), (half, {"precision": half}, True),
             ("fused AdamW", {"optimizer": "AdamW fused"}, True), ("checkpointing", {"checkpointing": True}, True)]
    found += [(f"{parts} micro-batches", {"accumulation": parts}, True) for parts in (2, 4)
              if choices.accumulation < parts <= choices.batch]
    found += [("features projected", {"fusion": "project-features"}, False), ("SGD", {"optimizer": "SGD"}, False)]
    done = {"attention": choices.attention == "sdpa", "precision": choices.precision != "fp32",
            "optimizer": choices.optimizer in ("AdamW fused", "SGD"), "checkpointing": choices.checkpointing,
            "fusion": choices.fusion != "concat"}
    return [switch for switch in found if not done.get(next(iter(switch[1])))
            or (switch[0] == "SGD" and choices.optimizer != "SGD")]


def try_cures(choices: Choices, seconds: float) -> Iterator[Cure | None]:
    """Run every switch, then pairs of those that did not help alone, until there are enough cures. One item a run: the
    cure, or None if it does not fit. seconds: estimate for a step of `choices`."""
    failed, found = [], 0
    for pairs in (False, True):
        groups = itertools.combinations(failed, 2) if pairs else [(switch,) for switch in switches(choices)]
        for group in groups:
            changes = {name: value for _, change, _ in group for name, value in change.items()}
            if len(changes) < len(group):
                continue  # both change the same setting
            run = measure(dataclasses.replace(choices, **changes), choices.batch)
            same_training = all(same for *_, same in group)
            if run.fits:
                found += 1
                words = " + ".join(words for words, *_ in group)
                yield Cure(words, changes, same_training, run, run.estimated_seconds / seconds)
            else:
                failed += [group[0]] * (same_training and not pairs)
                yield None
        if found >= ENOUGH:
            return
