"""Pictures of what is in memory: over time, and at the peak."""

import itertools

from matplotlib.patches import Rectangle

from helpers.measuring.run import ROLES, Run, Timeline
from helpers.plots.style import (
    BAD,
    COLOURS,
    FAINT,
    HATCHES,
    INK,
    ON_DARK,
    cached,
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
    requested,
    role_bar,
    role_patches,
    share_of,
    styled,
)
from helpers.units import GiB, format_bytes

POINTS = 600  # a longer timeline is thinned to about this many events
SHORT = {"setup": ["setup"], "forward": ["forward", "fwd"], "backward": ["backward", "bwd"],
         "optimizer step": ["optimizer step", "optimizer", "opt"]}
SHADE = {"setup": 0.0, "forward": 0.0, "backward": 0.07, "optimizer step": 0.15}


@styled
def timeline(run: Run, title: str | None = None, reserved: bool = False, capacity: int | None = None):
    """Memory by role after every allocation and every free, with the peak, or the request that did not fit.

    reserved: draw what the caching allocator held, too, where the card says it. After an error it is drawn anyway
    when more than a fiftieth of the card was held without a tensor in it. capacity: bytes, where the run comes from a
    larger card than the one the story is about.
    """
    check_runs([run], "timeline")
    line, capacity = run.timeline, capacity or run.capacity
    if not len(line):
        raise ValueError("This run allocated nothing on the card, so there is no timeline to draw.")
    end = len(line) if run.fits else line.peak + 1  # what follows an error are frees
    keep = thinned(line, end)
    figure, ax = new_figure(3.9)
    stack = ax.stackplot(keep, [[line.by_role[role][i] / GiB for i in keep] for role in ROLES], step="post",
                         colors=[COLOURS[role] for role in ROLES], edgecolor="white", linewidth=0.3)
    for role, area in zip(ROLES, stack, strict=True):
        area.set_gid(role)
        area.set_hatch(HATCHES.get(role))
    ax.set_xlim(0, end * (1.0 if run.fits else 1.09))
    top = max(capacity, max(line.allocated[i] for i in keep)) / GiB
    ax.set_ylim(0, top * 1.16)
    ax.set_ylabel("GiB")
    ax.set_xticks([])
    capacity_line(ax, capacity, run.card_name)
    if line.reserved and (reserved or cached(run) > capacity / 50):
        ax.step(keep, [line.reserved[i] / GiB for i in keep], where="post", color=INK, linewidth=1)
        ax.text(keep[-1], line.reserved[keep[-1]] / GiB, "reserved ", ha="right", va="bottom", path_effects=halo())
    draw_phases(ax, line, end)
    if run.fits:
        mark_peak(ax, run)
    else:
        mark_request(ax, run, end)
    figure.draw_without_rendering()
    rest = [role for role in ROLES if not label_area(ax, line, keep, role)
            and max(line.by_role[role][i] for i in keep) > capacity / 200]
    legend(figure, role_patches(rest))
    where = f"{line.phase[line.peak]} of step {line.step[line.peak] + 1}"
    role, share = largest_role(run)
    if run.fits:
        message = f"Batch {run.batch_size} peaks at {gib(run.peak_allocated)}, {share:.0f} % of it {role}"
        fate = f"The peak, {gib(run.peak_allocated, 2)}, is in {where}"
    else:
        message = f"Batch {run.batch_size} does not fit: {share_of(role, share)} of what is held"
        fate = f"It stops in {where} with {gib(sum(run.roles_at_peak.values()), 2)} allocated, {asked(run)}"
    return finish(figure, ax, title or message,
                  f"Memory over time, batch {run.batch_size} on {run.card_name} with {gib(capacity, 2)}. {fate}. "
                  f"{'At the peak' if run.fits else 'At the error'}: {in_words(run)}")


@styled
def breakdown(runs: dict[str, Run], title: str | None = None, capacity: int | None = None):
    """One bar a run: what was in memory at the peak, by role, or at the error, with the request that did not fit.

    runs: label -> Run. capacity: bytes; the smallest card among the runs unless given (runs from a larger card tell
    what they would have needed).
    """
    if isinstance(runs, Run):
        runs = {f"batch {runs.batch_size}": runs}
    check_runs(runs.values(), "breakdown")
    capacity, name = the_card(runs.values(), capacity)
    figure, ax = new_figure(1.35 + 0.42 * len(runs))
    longest = max([capacity, *(needed(run) + cached(run) for run in runs.values())]) / GiB
    ax.set_xlim(0, longest * 1.05)
    words = []
    for row, (label, run) in enumerate(runs.items()):
        role_bar(ax, row, run)
        verdict, colour = verdict_of(run, capacity)
        ax.annotate(verdict, (1, row), (4, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                    va="center", color=colour, weight="normal" if colour == INK else "bold", annotation_clip=False,
                    gid="total")
        words.append(f"{label}: {verdict}, {in_words(run)}")
    ax.set_yticks(range(len(runs)), list(runs))
    ax.set_ylim(len(runs) - 0.5, -0.95)
    ax.set_xlabel("GiB at the peak")
    capacity_line(ax, capacity, name, vertical=True)
    legend(figure, patches_of(runs.values(), capacity))
    failed = [run for run in runs.values() if not run.fits]
    heaviest = failed[0] if failed else max(runs.values(), key=needed)
    role, share = largest_role(heaviest)
    label = next(label for label, run in runs.items() if run is heaviest)
    return finish(figure, ax, title or f"{share_of(role, share).capitalize()} of {label}",
                  f"Memory by role on {name} with {gib(capacity, 2)}. " + ". ".join(words))


def verdict_of(run: Run, capacity: int) -> tuple[str, str]:
    """A few words and their colour."""
    if not run.fits:
        return "out of memory", BAD
    if not fits_in(run, capacity):
        return f"{gib(run.peak_allocated)}: too much", BAD
    return gib(run.peak_allocated), INK


def the_card(runs, capacity: int | None = None) -> tuple[int, str]:
    """Capacity in bytes, and the card's name."""
    smallest = min(runs, key=lambda run: run.capacity)
    return capacity or smallest.capacity, smallest.card_name


def largest_role(run: Run) -> tuple[str, float]:
    """The role that holds most, and its share in percent."""
    sizes = run.roles_at_peak
    role = max(sizes, key=sizes.get)
    return role, 100 * sizes[role] / max(sum(sizes.values()), 1)


def in_words(run: Run) -> str:
    return ", ".join(f"{role} {gib(size, 2)}" for role, size in run.roles_at_peak.items() if size) or "nothing"


def asked(run: Run) -> str:
    return f"asking for {format_bytes(requested(run))} more" if requested(run) else "asking for more"


def thinned(line: Timeline, end: int) -> list[int]:
    """Events to draw: of each stretch the highest and the lowest, so that no peak and no valley is lost."""
    width = max(1, 2 * end // POINTS)
    if width < 3:
        return list(range(end))
    keep = {0, end - 1, min(line.peak, end - 1)}
    for start in range(0, end, width):
        stretch = range(start, min(start + width, end))
        keep |= {max(stretch, key=line.allocated.__getitem__), min(stretch, key=line.allocated.__getitem__)}
    return sorted(keep)


def draw_phases(ax, line: Timeline, end: int) -> None:
    """Name the phases under the axis and the steps under them. What follows the last step has no name."""
    inches = 6.2 / ax.get_xlim()[1]
    phases = [(step, phase, [i for i, *_ in group]) for (step, phase), group in itertools.groupby(
        zip(range(end), line.step, line.phase, strict=False), key=lambda event: event[1:])]
    for number, (_, phase, events) in enumerate(phases):
        left, right = events[0], events[-1] + 1
        after = [name for _, name, _ in phases[number + 1:]]
        clipping = phase == "forward" and after[:1] == ["optimizer step"] and number > 1
        leaving = phase == "forward" and not after and number > 1 and right == len(line)
        if clipping or leaving:
            continue
        ax.axvspan(left, right, color=INK, alpha=SHADE[phase], zorder=0, linewidth=0)
        room = (right - left) * inches
        name = next((name for name in SHORT[phase] if len(name) * 0.068 < room), "")
        ax.text((left + right) / 2, -0.015, name, transform=ax.get_xaxis_transform(), ha="center", va="top",
                gid="phase")
    for step in range(max(line.step[:end]) + 1):
        events = [i for i in range(end) if line.step[i] == step and line.phase[i] != "setup"]
        if not events or (step and not any(line.phase[i] != "forward" for i in events)):
            continue
        left, right = events[0], events[-1]
        ax.annotate("", (left, -0.085), (right, -0.085), xycoords=ax.get_xaxis_transform(), annotation_clip=False,
                    arrowprops={"arrowstyle": "-", "color": FAINT, "shrinkA": 2, "shrinkB": 2})
        ax.text((left + right) / 2, -0.1, f"step {step + 1}", transform=ax.get_xaxis_transform(), ha="center", va="top")


def mark_peak(ax, run: Run) -> None:
    height, width = run.peak_allocated / GiB, ax.get_xlim()[1]
    right = run.timeline.peak < width * 0.8
    ax.plot([run.timeline.peak], [height], "v", color=INK, markersize=7, clip_on=False, zorder=6, gid="peak")
    ax.annotate(f"peak {gib(run.peak_allocated)}", (run.timeline.peak, height), (8 if right else -8, 4),
                textcoords="offset points", ha="left" if right else "right", va="bottom", weight="bold",
                path_effects=halo(), zorder=6)


def mark_request(ax, run: Run, end: int) -> None:
    """The allocation that failed, on top of all that was held."""
    line = run.timeline
    bottom = (line.allocated[line.peak] + cached(run)) / GiB
    height = max(requested(run) / GiB, run.capacity / GiB / 40)  # tall enough to be seen
    width = ax.get_xlim()[1]
    if cached(run) > run.capacity / 50:
        ax.add_patch(Rectangle((end, bottom - cached(run) / GiB), width - end, cached(run) / GiB, facecolor="white",
                               edgecolor=FAINT, hatch="..", linewidth=0.6, gid="cached"))
    ax.add_patch(Rectangle((end, bottom), width - end, height, facecolor="white", edgecolor=BAD, hatch="xxxx",
                           linewidth=1.2, zorder=6, gid="request"))
    text = f"{format_bytes(requested(run))} more do not fit" if requested(run) else "the next request does not fit"
    ax.text(width, bottom + height, text, ha="right", va="bottom", color=BAD, weight="bold", path_effects=halo(),
            zorder=6)


def label_area(ax, line: Timeline, keep: list[int], role: str) -> bool:
    """Write the role's name into its area where that is thickest; False where it is too thin everywhere."""
    box = ax.get_window_extent()
    points = ax.figure.dpi / 72
    half = (len(role) * 5.6 + 14) * points / box.width * ax.get_xlim()[1] / 2
    height = 11.5 * points / box.height * ax.get_ylim()[1]
    below = ROLES[:ROLES.index(role)]
    floor = [sum(line.by_role[other][i] for other in below) / GiB for i in keep]
    roof = [low + line.by_role[role][i] / GiB for low, i in zip(floor, keep, strict=True)]
    best, middle = (0.0, 0.0, 0.0, 0.0), keep[-1] / 2
    start = stop = 0
    for x in keep:
        while keep[start] < x - half:
            start += 1
        while stop < len(keep) and keep[stop] <= x + half:
            stop += 1
        if x - half >= 0 and x + half <= keep[-1]:
            low, high = max(floor[start:stop]), min(roof[start:stop])
            best = max(best, (round(high - low, 1), -abs(x - middle), x, (low + high) / 2))
    if best[0] < height:
        return False
    ax.text(best[2], best[3], role, ha="center", va="center", color="white" if role in ON_DARK else INK, gid="role",
            path_effects=halo(COLOURS[role]))
    return True
