"""One figure of each kind, from made-up runs, and how to look into a figure."""

import itertools

import matplotlib.text

from helpers import plots
from helpers.simulation.allocator.caching_allocator import CachingAllocator, SimulatedDriver
from helpers.units import GiB, MiB
from tests.measuring.factories import made_up_run


def fragmented():
    """Twelve pieces of 200 MiB in use, twelve free ones of 200 MiB between them."""
    allocator = CachingAllocator(SimulatedDriver(8 * GiB))
    blocks = [allocator.malloc(200 * MiB) for _ in range(24)]
    for block in blocks[::2]:
        allocator.free(block)
    return allocator.segments()


def all_switches():
    names = ["AMP", "checkpointing", "projection", "accumulation", "empty_cache"]
    rows = []
    for on in itertools.product((False, True), repeat=5):
        activations = 3.5 - sum(on[:4]) * 0.8
        rows.append(({name for name, is_on in zip(names, on, strict=True) if is_on},
                     made_up_run(activations=activations, capacity=20 * GiB)))
    return rows, names


FIGURES = {
    "timeline": lambda: plots.timeline(made_up_run()),
    "timeline of a failure": lambda: plots.timeline(made_up_run(4, fits=False)),
    "timeline with reserved": lambda: plots.timeline(made_up_run(events=2000), reserved=True),
    "breakdown": lambda: plots.breakdown({"two": made_up_run(1), "four": made_up_run(4, fits=False)}),
    "batch_sweep": lambda: plots.batch_sweep([made_up_run(1), made_up_run(2), made_up_run(3, fits=False)]),
    "two sweeps": lambda: plots.batch_sweep({"A": [made_up_run(1), made_up_run(2)],
                                             "B": [made_up_run(1, activations=1), made_up_run(2, activations=1)]}),
    "ladder": lambda: plots.ladder([("baseline", made_up_run(3, fits=False), 2), ("AMP", made_up_run(1), None),
                                    ("both", made_up_run(1, activations=1), 9)]),
    "trade": lambda: plots.trade({"baseline": (1.0, made_up_run(2)), "half": (1.2, made_up_run(2, activations=1)),
                                  "worse": (1.5, made_up_run(2, activations=1.5))}),
    "combinations": lambda: plots.combinations(*all_switches(), capacity=8 * GiB),
    "segments": lambda: plots.segments(fragmented(), request=500 * MiB),
    "curves": lambda: plots.curves({"float32": [3, 2, 1], "float16": [3, 2, 1.01]}),
}


def parts(figure, gid):
    """What the figure draws under that name."""
    return figure.findobj(lambda artist: artist.get_gid() == gid)


def words(figure) -> str:
    return " | ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))
