"""A picture of the caching allocator's memory: where there is room, and why it may be of no use."""

import math

from matplotlib.patches import Patch, Rectangle

from helpers.plots.style import BAD, FAINT, INK, finish, gib, legend, new_figure, styled
from helpers.units import GiB, MiB, format_bytes

IN_USE = "#5B6570"  # no role's colour
LINES = 8  # all segments one after the other, written in about so many lines as text is


@styled
def segments(snapshot, request: int | None = None, title: str | None = None):
    """The allocator's segments to scale, in lines read like text: what is in use, what is free, where one ends.

    snapshot: objects with `address`, `size` and `blocks`, a list of (address, size, is_free); bytes
    (`CachingAllocator.segments()`). request: bytes of an allocation to lay beside them, in the same scale.
    """
    snapshot = sorted(snapshot, key=lambda segment: segment.address)
    if not snapshot:
        raise ValueError("segments needs at least one segment: the allocator holds no memory.")
    total = sum(segment.size for segment in snapshot)
    free = [size for segment in snapshot for _, size, is_free in segment.blocks if is_free]
    width = max(total / LINES, request or 0)  # a line has room for what is asked for
    lines = math.ceil(total / width)
    unit, name = (GiB, "GiB") if total >= GiB else (MiB, "MiB")  # one unit in a picture, for its scale and its words
    rows = lines + (1 if request else 0)
    figure, ax = new_figure(1.1 + 0.32 * rows)
    ax.set_xlim(0, width / unit)
    ax.set_ylim(rows - 0.4, -0.5)
    start = 0
    for segment in snapshot:
        for first, size, is_free in merged(segment.blocks):
            draw(ax, start + first - segment.address, size, width, is_free, unit)
        line, place = divmod(start, width)
        ax.plot([place / unit] * 2, [line - 0.36, line + 0.36], color=INK, gid="segment",
                linewidth=0.9 if segment.size > width / 60 else 0.3)
        start += segment.size
    largest = max(free, default=0)
    count, pieces = plural(len(snapshot), "segment"), plural(len(free), "piece")
    if request:
        ax.add_patch(Rectangle((0, lines - 0.1), request / unit, 0.56, facecolor="white", edgecolor=BAD,
                               hatch="xxxx", gid="request"))
        beside = request < 0.6 * width  # else there is room only inside
        ax.text(request / unit if beside else width / 2 / unit, lines + 0.18,
                f"{'  ' * beside}asked for: {format_bytes(request)} in one piece", color=BAD, weight="bold",
                va="center", ha="left" if beside else "center",
                bbox=None if beside else {"facecolor": "white", "linewidth": 0, "pad": 0.8})
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    in_all = gib(total) if unit == GiB else f"{total / MiB:.0f} MiB"
    ax.set_xlabel(f"{name}; {count}, {in_all} in all; a stroke begins a segment; read line by line")
    legend(figure, [Patch(facecolor=IN_USE, label="in use"),
                    Patch(facecolor="white", edgecolor=FAINT, hatch="....", label="free, kept by PyTorch")])
    room = f"{format_bytes(sum(free))} are free"
    if request and request > largest:
        default = f"{room}, but no piece is as large as {format_bytes(request)}"
    else:
        default = f"{room}, the largest piece is {format_bytes(largest)}" if free else "Every segment is full"
    return finish(figure, ax, title or default,
                  f"The allocator holds {format_bytes(total)} in {count}; {room} in {pieces}, the "
                  f"largest {format_bytes(largest)}" + (f"; {format_bytes(request)} are asked for" if request else ""))


def merged(blocks) -> list[list]:
    """[address, size, is_free] with neighbours of one kind made one: thousands of tensors draw as a few areas."""
    areas: list[list] = []
    for address, size, is_free in blocks:
        if areas and areas[-1][2] == is_free:
            areas[-1][1] += size
        else:
            areas.append([address, size, is_free])
    return areas


def draw(ax, start: float, size: float, width: float, is_free: bool, unit: int) -> None:
    """One area, broken where the line ends; unit: bytes of one on the scale."""
    while size > 0:
        line, place = divmod(start, width)
        part = min(size, width - place)
        if part <= 0:  # rounding at the end of a line
            break
        ax.add_patch(Rectangle((place / unit, line - 0.32), part / unit, 0.64, linewidth=0.4, edgecolor=FAINT,
                               facecolor="white" if is_free else IN_USE,
                               hatch="...." if is_free else None, gid="free" if is_free else "in use"))
        start, size = start + part, size - part


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)
