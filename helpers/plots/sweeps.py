"""Pictures of a quantity that grows: memory with the batch size, and the loss with the steps."""

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from helpers.measuring.run import Run
from helpers.plots.one_run import the_card
from helpers.plots.style import (
    BAD,
    INK,
    LINES,
    capacity_line,
    check_runs,
    finish,
    gib,
    halo,
    legend,
    new_figure,
    spread,
    styled,
)
from helpers.units import GiB


@styled
def batch_sweep(runs: list[Run] | dict[str, list[Run]], title: str | None = None, unit: str = "document",
                close_up: bool = False):
    """Measured peaks against the batch size, with the straight line through those that fit.

    runs: a list, or label -> list to compare. The line is what is paid once (at batch 0) and what each document costs;
    a batch that does not fit is marked where the line says it would lie. Two series show where their lines cross.
    unit: what a batch is made of. close_up: show the lines alone, without zero and without the card's capacity.
    """
    series = runs if isinstance(runs, dict) else {"": list(runs)}
    for several in series.values():
        check_runs(several, "batch_sweep")
    if len(series) > len(LINES):
        raise ValueError(f"batch_sweep draws at most {len(LINES)} series, got {len(series)}.")
    everything = [run for several in series.values() for run in several]
    capacity, name = the_card(everything)
    lines = {label: straight_line(several) for label, several in series.items()}
    last = max(run.batch_size for run in everything)
    figure, ax = new_figure(4.1)
    words, ends, failed = [], [], False
    for (label, several), (colour, dashes, marker) in zip(series.items(), LINES, strict=False):
        fits = sorted((run for run in several if run.fits), key=lambda run: run.batch_size)
        fails = sorted((run for run in several if not run.fits), key=lambda run: run.batch_size)
        ax.plot([run.batch_size for run in fits], [run.peak_allocated / GiB for run in fits], marker, color=colour,
                markersize=7, zorder=5, gid="measured")
        if lines[label]:
            fixed, each = lines[label]
            ax.plot([0, last], [fixed / GiB, (fixed + each * last) / GiB], dashes, color=colour, linewidth=1.6,
                    gid="line")
            for run in fails:
                ax.plot([run.batch_size], [(fixed + each * run.batch_size) / GiB], "x", color=BAD, markersize=9,
                        markeredgewidth=2.5, zorder=6, gid="fails")
            ends.append((label, fixed, each, colour))
        failed |= bool(fails) and lines[label] is not None
        words.append(sentence(label, fits, fails, lines[label], unit))
    ax.set_xlim(0, last * 1.02)
    heights = [height / GiB for _, fixed, each, _ in ends for height in (fixed, fixed + each * last)]
    heights += [run.peak_allocated / GiB for run in everything]
    if close_up:
        ax.set_ylim(min(heights) - 0.3, max(heights) + 0.3)
    else:
        ax.set_ylim(0, max(capacity / GiB, *heights) * 1.12)
        capacity_line(ax, capacity, name)
    ax.set_xticks(range(last + 1) if last <= 12 else sorted({0, *(run.batch_size for run in everything)}))
    ax.set_xlabel(f"batch size ({unit}s)")
    ax.set_ylabel("peak allocated, GiB")
    label_lines(ax, ends, last)
    if failed:
        legend(figure, [Line2D([], [], color=BAD, marker="x", linestyle="none", markersize=9, markeredgewidth=2.5,
                               label="does not fit: where the line leads")])
    crossing = mark_crossing(ax, ends, last)
    return finish(figure, ax, title or message(series, lines, unit),
                  f"Peak memory against batch size on {name} with {gib(capacity, 2)}. {'. '.join(words)}{crossing}")


def straight_line(runs: list[Run]) -> tuple[float, float] | None:
    """(bytes at batch 0, bytes a document) of the least-squares line through the peaks that fit; None below two."""
    points = [(run.batch_size, run.peak_allocated) for run in runs if run.fits]
    if len({size for size, _ in points}) < 2:
        return None
    middle = sum(size for size, _ in points) / len(points)
    height = sum(peak for _, peak in points) / len(points)
    each = (sum((size - middle) * (peak - height) for size, peak in points)
            / sum((size - middle) ** 2 for size, _ in points))
    return height - each * middle, each


def sentence(label, fits, fails, line, unit) -> str:
    parts = [", ".join(f"batch {run.batch_size} {gib(run.peak_allocated, 2)}" for run in fits) or "nothing fits"]
    if fails:
        parts.append("does not fit: batch " + ", ".join(str(run.batch_size) for run in fails))
    if line:
        parts.append(f"the line is {gib(line[0], 2)} and {gib(line[1], 2)} a {unit}")
    return (f"{label}: " if label else "") + "; ".join(parts)


def message(series, lines, unit) -> str:
    known = [(label, line) for label, line in lines.items() if line]
    if len(series) > 1 and len(known) > 1:
        return f"A {unit} costs " + ", ".join(f"{gib(each)} with {label}" for label, (_, each) in known)
    (several,) = list(series.values())[:1]
    best = max((run.batch_size for run in several if run.fits), default=0)
    start = f"Each {unit} costs {gib(known[0][1][1])}: " if known else ""
    end = f"batch {best} is the last that fits" if any(not run.fits for run in several) else f"batch {best} fits"
    return start + (end if start else end.capitalize())


def label_lines(ax, ends, last: int) -> None:
    """Each line's name and its two numbers, beside it at the right."""
    heights = [(fixed + each * last) / GiB for _, fixed, each, _ in ends]
    low, high = ax.get_ylim()
    places = spread(heights, (high - low) * 0.19)
    for (label, fixed, each, colour), height in zip(ends, places, strict=True):
        text = f"{gib(fixed)} +\n{gib(each)} × batch"
        ax.annotate(f"{label}\n{text}" if label else text, (1.01, height), xycoords=ax.get_yaxis_transform(),
                    va="center", color=colour, annotation_clip=False, weight="bold")


def mark_crossing(ax, ends, last: int) -> str:
    """A ring where two lines cross inside the picture; the words for it."""
    if len(ends) != 2 or ends[0][2] == ends[1][2]:
        return ""
    (one, fixed, each, _), (two, other_fixed, other_each, _) = ends
    batch = (other_fixed - fixed) / (each - other_each)
    if not 0 < batch < last:
        return ""
    more = one if fixed > other_fixed else two
    ax.plot([batch], [(fixed + each * batch) / GiB], "o", markersize=14, markerfacecolor="none", color=INK,
            gid="crossing")
    ax.annotate(f"below batch {batch:.1f} {more} needs more", (batch, (fixed + each * batch) / GiB), (10, -16),
                textcoords="offset points", va="top", path_effects=halo())
    return f". The lines of {one} and {two} cross at batch {batch:.1f}; below it {more} needs more"


@styled
def curves(losses: dict[str, list[float]], title: str | None = None, ylabel: str = "loss"):
    """Small training curves. losses: label -> one number a step; up to four, written beside their ends."""
    if not losses or len(losses) > len(LINES) or not all(len(values) for values in losses.values()):
        raise ValueError(f"curves draws one to {len(LINES)} lists of numbers, none of them empty; got {losses!r}.")
    figure, ax = new_figure(3.3)
    for values, (colour, dashes, _) in zip(losses.values(), LINES, strict=False):
        ax.plot(range(1, len(values) + 1), list(map(float, values)), dashes, color=colour, linewidth=1.8, gid="curve")
    ax.margins(y=0.12)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = ax.get_ylim()
    places = spread([float(values[-1]) for values in losses.values()], (high - low) * 0.085)
    for (label, values), place, (colour, *_) in zip(losses.items(), places, LINES, strict=False):
        ax.annotate(f"{label} {float(values[-1]):.2f}", (1.01, place), xycoords=ax.get_yaxis_transform(), va="center",
                    color=colour, weight="bold", annotation_clip=False)
    ax.set_xlim(1, max(2, *(len(values) for values in losses.values())))
    ax.set_xlabel("step")
    ax.set_ylabel(ylabel)
    last = [float(values[-1]) for values in losses.values()]
    default = f"After {max(map(len, losses.values()))} steps the {ylabel} is " + (
        f"{last[0]:.2f}" if len(last) == 1 else f"between {min(last):.2f} and {max(last):.2f}")
    words = "; ".join(f"{label} from {float(values[0]):.2f} to {float(values[-1]):.2f}"
                      for label, values in losses.items())
    return finish(figure, ax, title or default, f"Curves of the {ylabel} over the training steps: {words}")
