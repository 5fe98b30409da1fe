"""A picture of a memory snapshot: memory over time, by the reader's source line."""

import numpy
from matplotlib.patches import Patch, Rectangle

from helpers.plots.style import BAD, FAINT, INK, capacity_line, finish, gib, halo, legend, new_figure, styled
from helpers.units import GiB, format_bytes

POINTS = 1200  # a longer recording is thinned to about this many events
LINES = 6  # lines with a colour of their own
SHADES = ("#3B4A6B", "#B9C6D8", "#7A5C86", "#DCCBE1", "#4F7F7A", "#C9DED6")  # no role's colours; dark and light in turn
REST = "#EEEEEE"


@styled
def recording(snapshot, title: str | None = None):
    """What was in use after every event of a recording, by the lines that hold most at the peak or at the error.

    snapshot: what `open_snapshot` gave. Drawn with it: what was reserved, what PyTorch could have had, where steps
    begin, and the request that failed.
    """
    events, failure = len(snapshot), snapshot.failure
    if not events:
        raise ValueError("This snapshot has no history to draw: record one with "
                         "torch.cuda.memory._record_memory_history().")
    named = list(dict.fromkeys(culprit.line for culprit in snapshot.holders))[:LINES]
    end = snapshot.when if failure else events
    keep = thinned(snapshot.allocated[:end + 1], snapshot.when)
    areas = by_line(snapshot, named, keep)
    figure, ax = new_figure(4.3)
    for name, colour, area in zip([*named, "rest"], [*SHADES[:len(named)], REST],
                                  ax.stackplot(keep, areas / GiB, step="post", linewidth=0), strict=True):
        area.set(facecolor=colour, gid=name, edgecolor=FAINT, hatch="...." if name == "rest" else None)
    ax.step(keep, snapshot.reserved[keep] / GiB, where="post", color=INK, linewidth=1, gid="reserved")
    ax.set_xlim(0, max(end, 1) * (1.08 if failure else 1))
    limit = snapshot.capacity
    wanted = int(snapshot.reserved[end]) + failure.bytes if failure else 0
    top = max(int(snapshot.reserved[:end + 1].max()), int(snapshot.allocated[:end + 1].max()), limit or 0, wanted,
              1) / GiB
    ax.set_ylim(0, top * 1.16)
    ax.set_ylabel("GiB")
    ax.set_xlabel(f"events; reserved is the black line{'; a stroke begins a step' if len(snapshot.starts) else ''}")
    ax.set_xticks([])
    if limit:
        capacity_line(ax, limit, "PyTorch could have")
    begins = snapshot.starts[snapshot.starts < end]
    for start in begins if len(begins) <= 60 else ():
        ax.axvline(start, ymax=0.03, color=INK, linewidth=1.2, gid="step")
    if failure:
        mark_request(ax, snapshot, end)
    patches = [Patch(facecolor=colour, label=name) for name, colour in zip(named, SHADES, strict=False)]
    legend(figure, [*patches, Patch(facecolor=REST, hatch="....", edgecolor=FAINT, label="all others")],
           columns=3 if max(map(len, named), default=0) < 24 else 2)
    share = 100 * areas[0, numpy.searchsorted(keep, snapshot.when)] / max(snapshot.allocated[snapshot.when], 1)
    at = "at the error" if failure else "at the peak"
    words = ", ".join(f"{name} {gib(size, 2)}" for name, size in zip(
        [*named, "others"], areas[:, numpy.searchsorted(keep, snapshot.when)], strict=True) if size >= GiB / 200)
    fate = f" {format_bytes(failure.bytes)} more do not fit." if failure else ""
    return finish(figure, ax, title or f"{named[0]} holds {share:.0f} % {at}" if named else "Nothing was in use",
                  f"Memory over {events} events. In use {at}: {words or 'nothing'}; reserved "
                  f"{gib(int(snapshot.reserved[snapshot.when]), 2)}.{fate}")


def thinned(sizes, always: int):
    """Positions to draw: of each stretch the highest and the lowest, and `always`."""
    width = max(1, 2 * len(sizes) // POINTS)
    if width < 3:
        return numpy.arange(len(sizes))
    whole = sizes[:len(sizes) // width * width].reshape(-1, width)
    first = numpy.arange(len(whole)) * width
    rest = numpy.arange(len(whole) * width, len(sizes))
    return numpy.unique(numpy.concatenate([first + whole.argmax(1), first + whole.argmin(1), rest,
                                           [0, always, len(sizes) - 1]]))


def by_line(snapshot, named: list[str], keep):
    """Bytes in use at the positions `keep`: a row for each line, and one for all others."""
    blocks = snapshot.recording
    row_of = numpy.array([named.index(place.line) if place.line in named else len(named) for place in blocks.places])
    rows = row_of[blocks.place] if len(row_of) else numpy.zeros(0, dtype=int)
    areas = numpy.zeros((len(named) + 1, len(keep)))
    for row in range(len(named) + 1):
        chosen = rows == row
        change = numpy.zeros(len(snapshot) + 2, dtype=numpy.int64)
        numpy.add.at(change, blocks.birth[chosen] + 1, blocks.sizes[chosen])
        numpy.subtract.at(change, blocks.death[chosen] + 1, blocks.sizes[chosen])
        areas[row] = numpy.cumsum(change)[keep]
    return areas


def mark_request(ax, snapshot, end: int) -> None:
    """The request that failed, on top of all that was reserved."""
    bottom, right = snapshot.reserved[end] / GiB, ax.get_xlim()[1]
    height = max(snapshot.failure.bytes / GiB, ax.get_ylim()[1] / 45)  # tall enough to be seen
    ax.add_patch(Rectangle((end, bottom), right - end, height, facecolor="white", edgecolor=BAD, hatch="xxxx",
                           linewidth=1.2, zorder=6, gid="request"))
    ax.text(right, bottom + height, f"{format_bytes(snapshot.failure.bytes)} more do not fit", ha="right", va="bottom",
            color=BAD, weight="bold", path_effects=halo(), zorder=6)
