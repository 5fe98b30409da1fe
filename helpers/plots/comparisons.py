"""Pictures that set techniques side by side: the ladder, memory against work, and every combination."""

from matplotlib.text import Text

from helpers.measuring.run import Run
from helpers.plots.one_run import the_card, verdict_of
from helpers.plots.style import (
    BAD,
    FAINT,
    INK,
    capacity_line,
    check_runs,
    finish,
    fits_in,
    gib,
    halo,
    legend,
    needed,
    new_figure,
    patches_of,
    role_bar,
    styled,
)
from helpers.units import GiB


@styled
def ladder(rows: list[tuple[str, Run, int]], title: str | None = None, capacity: int | None = None,
           from_first: bool = False):
    """One row a technique: its peak by role, the change from the row above, the largest batch that fits.

    rows: (label, Run, largest batch or None). capacity: bytes, for runs that come from a larger card; the smallest card
    among the runs unless given. from_first: the change is from the first row instead, for techniques tried one by one.
    """
    rows = [(label, run, largest) for label, run, largest in rows]
    runs = [run for _, run, _ in rows]
    check_runs(runs, "ladder")
    capacity, name = the_card(runs, capacity)
    figure, ax = new_figure(1.5 + 0.42 * len(rows))
    longest = max(capacity, *map(needed, runs), 1) / GiB
    ax.set_xlim(0, longest * 1.06)
    words, above = [], None
    columns = {"peak": 50, "vs first" if from_first else "change": 100, "largest\nbatch": 145}  # points right of axes
    if from_first and not runs[0].fits:
        del columns["vs first"]
    if all(largest is None for *_, largest in rows):
        del columns["largest\nbatch"]
    for column, x in columns.items():
        ax.annotate(column, (1, -0.55), (x, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                    ha="right", va="bottom", color="#555555", linespacing=0.95, annotation_clip=False)
    for row, (label, run, largest) in enumerate(rows):
        role_bar(ax, row, run, numbers=False)
        fits = fits_in(run, capacity)
        peak = f"{needed(run) / GiB:.1f}" if run.fits else f"> {sum(run.roles_at_peak.values()) / GiB:.1f}"
        change = f"{(needed(run) - above) / GiB:+.1f}".replace("-", "−") if above is not None and run.fits else ""
        if not from_first or row == 0:
            above = needed(run) if run.fits else None
        cells = {"peak": peak + ("" if fits else " ✗"), "largest\nbatch": "" if largest is None else str(largest)}
        for column, x in columns.items():
            ax.annotate(cells.get(column, change), (1, row), (x, 0), xycoords=ax.get_yaxis_transform(),
                        textcoords="offset points", ha="right", va="center", gid=column, annotation_clip=False,
                        color=INK if fits or column != "peak" else BAD, weight="bold" if column == "peak" else "normal")
        words.append(f"{label}: {verdict_of(run, capacity)[0]}" + (f", {change} GiB" if change else "")
                     + (f", largest batch {largest}" if largest is not None else ""))
    ax.set_yticks(range(len(rows)), [label for label, *_ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.95)
    ax.set_xlabel(f"GiB at the peak{'' if all(fits_in(run, capacity) for run in runs) else '   (✗ does not fit)'}")
    capacity_line(ax, capacity, name, vertical=True)
    legend(figure, patches_of(runs, capacity))
    low = min(rows, key=lambda row: needed(row[1]))
    start = f"from {needed(runs[0]) / GiB:.1f} " if runs[0].fits else "down "
    default = f"“{low[0]}” needs the least: {start}to {gib(needed(low[1]))}"
    changes = f", each with its change from the {'first row' if from_first else 'row above'}"
    changes = "" if from_first and not runs[0].fits else changes
    return finish(figure, ax, title or default,
                  f"Ladder of techniques on {name} with {gib(capacity, 2)}{changes}. " + ". ".join(words))


@styled
def trade(points: dict[str, tuple[float, Run]], title: str | None = None, capacity: int | None = None):
    """Peak memory against work. points: label -> (FLOPs relative to the baseline, 1.0 = as many, Run).

    A filled point is a choice worth making: nothing else needs less memory (by more than a percent) and no more work.
    """
    check_runs([run for _, run in points.values()], "trade")
    capacity, name = the_card([run for _, run in points.values()], capacity)
    where = {label: (100 * (ratio - 1), needed(run) / GiB) for label, (ratio, run) in points.items()}
    worth = {label for label in where if not any(beats(where, other, label) for other in where)}
    figure, ax = new_figure(4.2)
    for label, (work, peak) in where.items():
        ax.plot([work], [peak], "o", color=INK if label in worth else FAINT, markersize=8, gid=label,
                zorder=6 if label in worth else 5, markerfacecolor=INK if label in worth else "white",
                markeredgewidth=1.6)
    works = [work for work, _ in where.values()]
    room = max(max(works) - min(works), 4)
    ax.set_xlim(min(works) - room * 0.08, max(works) + room * 0.3)
    ax.set_ylim(0, max(capacity / GiB, *(peak for _, peak in where.values())) * 1.12)
    ax.set_xlabel("extra floating-point operations, %    (filled: nothing else is both lower and cheaper)")
    ax.set_ylabel("GiB at the peak")
    capacity_line(ax, capacity, name)
    figure.draw_without_rendering()
    write_apart(ax, where, worth)
    low = min(where, key=lambda label: where[label][1])
    work = round(where[low][0])
    price = f"for {work} % more work" if work > 0 else f"with {-work} % less work" if work < 0 else "for no more work"
    saved = max(peak for _, peak in where.values()) - where[low][1]
    words = "; ".join(f"{label} {peak:.2f} GiB at {work:+.0f} % work" + ", a good choice" * (label in worth)
                      for label, (work, peak) in where.items())
    return finish(figure, ax, title or f"“{low}” saves {saved:.1f} GiB {price}",
                  f"Peak memory against extra work on {name} with {gib(capacity, 2)}: {words}")


def beats(where: dict[str, tuple[float, float]], other: str, label: str) -> bool:
    """Whether `other` is as good in memory and in work, and better in one; of two equal points the first counts."""
    (work, peak), (other_work, other_peak) = where[label], where[other]
    as_good = other_work <= work + 0.05 and other_peak <= 1.01 * peak
    better = other_work < work - 0.05 or other_peak < 0.99 * peak
    return as_good and (better or list(where).index(other) < list(where).index(label))


def write_apart(ax, where: dict[str, tuple[float, float]], worth: set[str]) -> None:
    """Write each label beside its point, at the first of some places where it covers nothing."""
    renderer = ax.figure.canvas.get_renderer()
    points = ax.figure.dpi / 72
    taken = []
    for place in where.values():
        x, y = ax.transData.transform(place)
        taken.append((x - 6 * points, y - 6 * points, x + 6 * points, y + 6 * points))
    taken += [(box.x0, box.y0, box.x1, box.y1) for box in (text.get_window_extent(renderer) for text in ax.texts)]
    frame = ax.get_window_extent()
    offsets = [(9, 0, "left", "center"), (-9, 0, "right", "center")]
    offsets += [(0, 8, "center", "bottom"), (0, -8, "center", "top")]
    offsets += [(9, dy, "left", "center") for step in range(1, 7) for dy in (13 * step, -13 * step)]
    for label, place in where.items():
        best = None
        for dx, dy, ha, va in offsets:
            text = ax.annotate(label, place, (dx, dy), textcoords="offset points", ha=ha, va=va, gid="label",
                               color=INK if label in worth else "#555555", path_effects=halo(), zorder=6,
                               arrowprops={"arrowstyle": "-", "color": FAINT, "shrinkB": 4} if abs(dy) > 10 else None)
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # of the words, without the line that leads to them
            box = (box.x0, box.y0, box.x1, box.y1)
            inside = frame.x0 < box[0] and box[2] < frame.x1 and frame.y0 < box[1] and box[3] < frame.y1
            if inside and not any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
                                  for other in taken):
                best = box
                break
            text.remove()
        if best is None:
            best = (0, 0, 0, 0)
            ax.annotate(label, place, (9, 0), textcoords="offset points", va="center", gid="label")
        taken.append(best)


@styled
def combinations(rows: list[tuple[set[str], Run]], switches: list[str], title: str | None = None,
                 capacity: int | None = None):
    """Every on/off combination of some switches, lowest peak first. A dot under a stem means: this switch is on.

    A run that failed stands as high as what it held and asked for, and is labelled as in `ladder` by what it held.
    rows: (names of the switches that are on, Run). switches: all names, in the order of the rows of dots.
    """
    rows = sorted(((set(on), run) for on, run in rows), key=lambda row: (needed(row[1]), len(row[0]), sorted(row[0])))
    check_runs([run for _, run in rows], "combinations")
    unknown = set().union(*(on for on, _ in rows)) - set(switches)
    if unknown:
        raise ValueError(f"Switches {sorted(unknown)} are not among {list(switches)}.")
    capacity, name = the_card([run for _, run in rows], capacity)
    figure, (ax, dots) = new_figure(3.2 + 0.24 * len(switches), rows=2, sharex=True,
                                    height_ratios=[2.6, 0.24 * len(switches)])
    numbers = [f"{needed(run) / GiB:.1f}" if run.fits else f" > {sum(run.roles_at_peak.values()) / GiB:.1f}"
               for _, run in rows]
    for column, (on, run) in enumerate(rows):
        peak, fits = needed(run) / GiB, fits_in(run, capacity)
        ax.plot([column, column], [0, peak], color=INK if fits else BAD, linewidth=1.6)
        ax.plot([column], [peak], "o" if fits else "X", color=INK if fits else BAD, markersize=6 if fits else 8,
                gid="fits" if fits else "fails")
        ax.text(column, peak, f"  {numbers[column]}", rotation=90, ha="center", va="bottom", path_effects=halo(),
                color=INK if fits else BAD, zorder=6)
        dots.plot([column] * len(switches), range(len(switches)), "o", color="#DDDDDD", markersize=4)
        chosen = [number for number, switch in enumerate(switches) if switch in on]
        dots.plot([column] * len(chosen), chosen, "o-", color=INK, markersize=6, linewidth=1, gid="on")
    ax.set_ylim(0, max(capacity, *(needed(run) for _, run in rows)) / GiB * 1.25)
    ax.set_ylabel("GiB at the peak")
    ax.tick_params(axis="x", bottom=False)
    dots.set_yticks(range(len(switches)), switches)
    dots.set_ylim(len(switches) - 0.5, -0.5)
    dots.set_xlim(-0.7, len(rows) - 0.3)
    dots.tick_params(bottom=False, labelbottom=False, left=False)
    dots.spines[:].set_visible(False)
    capacity_line(ax, capacity, name)
    fitting = sum(fits_in(run, capacity) for _, run in rows)
    if fitting < len(rows):
        ax.plot([], [], "o", color=INK, label="fits")
        failed = " (> allocated at the error)" if not all(run.fits for _, run in rows) else ""
        ax.plot([], [], "X", color=BAD, markersize=8, label="does not fit" + failed)
        ax.legend(loc="upper left", bbox_to_anchor=(0, 0.9 * capacity / GiB / ax.get_ylim()[1]), frameon=False)
    words = "; ".join(f"{' + '.join(switch for switch in switches if switch in on) or 'none'} {number.strip()} GiB"
                      + ("" if fits_in(run, capacity) else " does not fit" if run.fits else
                         " allocated when it failed, a lower bound")
                      for (on, run), number in zip(rows, numbers, strict=True))
    return finish(figure, ax, title or f"{fitting} of {len(rows)} combinations fit; the lowest peak is "
                  f"{gib(needed(rows[0][1]))}",
                  f"Combinations on {name} with {gib(capacity, 2)}, lowest peak first: {words}")
