"""Where a training step begins in a recording, and what stays from step to step."""

import dataclasses

import numpy

from helpers.snapshots.frames import NOWHERE
from helpers.snapshots.reading import Recording
from helpers.units import MiB, format_bytes

OTHER, FORWARD, BACKWARD, OPTIMIZER = range(4)
SMALLEST = MiB  # a leak of less is not told


@dataclasses.dataclass(frozen=True)
class Leak:
    """What the blocks of a line add from step to step. steps: in how many, of those that were over, some stayed."""

    line: str
    bytes: int
    per_step: int
    steps: int

    def __str__(self) -> str:
        return f"{self.line}: {format_bytes(self.per_step)} more each step, {format_bytes(self.bytes)} by now"


def starts(recording: Recording) -> numpy.ndarray:
    """The events at which a step after the first begins.

    Where a forward pass follows backward or the optimizer; else after the optimizer; else where something is put on the
    card between two calls of a model. Empty where frames show none of these.
    """
    codes = numpy.array([phase_code(place) for place in recording.places] or [OTHER])
    in_model = numpy.array([place.in_model for place in recording.places] or [False])
    born = recording.birth >= 0
    events, places = recording.birth[born], recording.place[born]
    code = codes[places]
    for counted, ends in ((code != OTHER, code != FORWARD), (code >= OTHER, code == OPTIMIZER),
                          (code >= OTHER, in_model[places])):
        ends, at = ends[counted], events[counted]
        begins = numpy.flatnonzero(ends[:-1] & ~ends[1:]) + 1
        if len(begins):
            return at[begins]
    return events[:0]


def phase_code(place) -> int:
    if place.phase == "backward" or place.line == NOWHERE:  # where only Python frames were kept, backward has none
        return BACKWARD
    return {"optimizer step": OPTIMIZER, "forward": FORWARD}.get(place.phase, OTHER)


def leaks(snapshot) -> list[Leak]:
    """Lines with blocks that were made in several steps and are all still there, largest first.

    The first step does not count: parameters and the optimizer's state stay, as they should; nor does the last, which
    is not over. What is left must come from at least two steps, and from half of all.
    """
    recording, begins = snapshot.recording, snapshot.starts
    begins = begins[begins < snapshot.when]
    over = len(begins) - 1
    if over < 2:
        return []
    blocks = snapshot.live(snapshot.when)
    blocks = blocks[recording.birth[blocks] >= 0]
    step = numpy.searchsorted(begins, recording.birth[blocks], side="right")
    inside = (step >= 1) & (step <= over)
    lines = {}
    for block, number in zip(blocks[inside].tolist(), step[inside].tolist(), strict=True):
        place = recording.places[recording.place[block]]
        added = lines.setdefault(place.line, {})
        added[number] = added.get(number, 0) + int(recording.sizes[block])
    found = [Leak(line, sum(added.values()), sum(added.values()) // len(added), len(added))
             for line, added in lines.items() if len(added) >= max(2, over / 2) and sum(added.values()) >= SMALLEST]
    return sorted(found, key=lambda leak: (-leak.bytes, leak.line))
