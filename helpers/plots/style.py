"""What all pictures share: one colour a role, the line of the card's capacity, fonts that can be read at half width."""

import functools

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from helpers.measuring.run import ROLES, Run
from helpers.units import GiB

# Near Okabe and Ito's colours, told apart without colour vision. Neighbours in a stack differ in lightness
# too, for print in grey; temporaries have a pattern.
COLOURS = {"parameters": "#004C7F", "gradients": "#F0E442", "optimizer state": "#009E73", "activations": "#E69F00",
           "batch": "#333333", "temporaries": "#CC79A7"}
HATCHES = {"temporaries": "////"}
ON_DARK = ("parameters", "optimizer state", "batch")  # white writing on these
INK, FAINT, BAD = "#222222", "#777777", "#A93200"
LINES = (("#0072B2", "-", "o"), ("#D55E00", "--", "s"), ("#009E73", "-.", "D"), ("#8A4F7D", ":", "^"))
STYLE = {"font.size": 9.5, "axes.titlesize": 11.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT, "axes.labelcolor": INK,
         "text.color": INK, "xtick.color": INK, "ytick.color": INK, "hatch.linewidth": 0.8, "figure.facecolor": "white"}


def styled(function):
    """Draw with the settings of this file, whatever style the reader has chosen, and leave theirs as it was."""
    @functools.wraps(function)
    def draw(*args, **kwargs):
        with matplotlib.style.context(["default", STYLE]):
            return function(*args, **kwargs)
    return draw


def new_figure(height: float, rows: int = 1, **kwargs):
    """A figure 7 inches wide and its axes. White, also on a dark page."""
    figure = Figure(figsize=(7, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.06)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, **kwargs)


def finish(figure, ax, title: str, alt_text: str):
    """Give the figure its message and its words, and settle where everything lies: drawn twice, it is the same."""
    ax.set_title(wrapped(title, 66))
    figure.alt_text = alt_text if alt_text.endswith(".") else f"{alt_text}."
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def wrapped(text: str, width: int) -> str:
    """`text` in lines of about the same length, each at most `width` characters."""
    import textwrap

    lines = textwrap.wrap(text, width)
    return "\n".join(textwrap.wrap(text, max(len(text) // len(lines) + 8, 1)) if len(lines) > 1 else lines)


def share_of(role: str, share: float) -> str:
    """Such as "activations are 82 %"."""
    return f"{role} {'are' if role.endswith('s') else 'is'} {share:.0f} %"


def gib(size: float, digits: int = 1) -> str:
    return f"{size / GiB:.{digits}f} GiB"


def halo(colour: str = "white"):
    """An outline that keeps writing readable on any area."""
    return [withStroke(linewidth=2.5, foreground=colour)]


def check_runs(runs, what: str) -> None:
    """TypeError, one sentence, unless `runs` is a non-empty list of `Run`."""
    runs = list(runs)
    if not runs or not all(isinstance(run, Run) for run in runs):
        raise TypeError(f"{what} needs at least one Run from card.run(...), got {runs!r}.")


def fits_in(run: Run, capacity: int) -> bool:
    """Whether the run fits a card with `capacity` bytes; the run may come from a larger card."""
    return run.fits and run.peak_reserved <= capacity


def needed(run: Run) -> int:
    """Bytes at the peak; at an error, what was held and what was asked for: a lower bound of the peak."""
    return run.peak_allocated if run.fits else sum(run.roles_at_peak.values()) + requested(run)


def requested(run: Run) -> int:
    """Bytes asked for by the allocation that failed; 0 where the run fits or the card does not say."""
    return run.request.bytes if run.request is not None and not run.fits else 0


def cached(run: Run) -> int:
    """Bytes that the allocator held at the error without a tensor in them."""
    line = run.timeline
    return line.reserved[line.peak] - line.allocated[line.peak] if not run.fits and line.reserved else 0


def role_patches(roles) -> list[Patch]:
    return [Patch(facecolor=COLOURS[role], edgecolor="white", hatch=HATCHES.get(role), linewidth=0, label=role)
            for role in roles]


def patches_of(runs, capacity: int) -> list[Patch]:
    """What a legend of bars needs: the roles that can be seen, and the request that did not fit."""
    seen = [role for role in ROLES if any(run.roles_at_peak[role] > capacity / 150 for run in runs)]
    request = Patch(facecolor="white", edgecolor=BAD, hatch="xxxx", label="did not fit")
    return role_patches(seen) + [request] * any(not run.fits for run in runs)


def legend(figure, patches, columns: int | None = None) -> None:
    if patches:
        figure.legend(handles=patches, loc="outside lower left", ncols=columns or len(patches), frameon=False,
                      fontsize=9.5, handlelength=1.1, handletextpad=0.4, columnspacing=1.1)


def capacity_line(ax, capacity: int, name: str, vertical: bool = False) -> None:
    """The line that no run may cross, with what it is: bytes that PyTorch may reserve."""
    text = f"{name}: {gib(capacity)}"
    if vertical:
        ax.axvline(capacity / GiB, color=INK, linewidth=1.4, linestyle=(0, (5, 2)), zorder=4)
        ax.text(capacity / GiB, 1.0, f"{text} ", transform=ax.get_xaxis_transform(), ha="right", va="top", zorder=5)
    else:
        ax.axhline(capacity / GiB, color=INK, linewidth=1.4, linestyle=(0, (5, 2)), zorder=4)
        ax.text(0.0, capacity / GiB, f" {text}", transform=ax.get_yaxis_transform(), ha="left", va="bottom",
                path_effects=halo(), zorder=5)


def role_bar(ax, row: float, run: Run, height: float = 0.62, numbers: bool = True) -> float:
    """One horizontal bar of what a run held, by role; after an error also the request. Returns its end in GiB."""
    left = 0.0
    for role, size in run.roles_at_peak.items():
        size /= GiB
        if size:
            ax.barh(row, size, height, left=left, color=COLOURS[role], edgecolor="white", linewidth=0.6,
                    hatch=HATCHES.get(role), gid=role)
            if numbers and size > 1.2 * ax.get_xlim()[1] / 22:
                ax.text(left + size / 2, row, f"{size:.1f}", ha="center", va="center", gid="number",
                        color="white" if role in ON_DARK else INK)
        left += size
    if not run.fits:
        free, request = cached(run) / GiB, requested(run) / GiB
        if free:
            ax.barh(row, free, height, left=left, color="white", edgecolor=FAINT, hatch="..", linewidth=0.6,
                    gid="cached")
        ax.barh(row, max(request, run.capacity / GiB / 60), height, left=left + free, color="white", edgecolor=BAD,
                hatch="xxxx", linewidth=1.2, gid="request", zorder=5)
        left += free + max(request, run.capacity / GiB / 60)
    return left


def spread(values: list[float], gap: float) -> list[float]:
    """The values moved apart until neighbours are at least `gap` from each other, order kept, near where they were."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    groups = []  # (sum of wanted starts, members): groups that touch are merged and centred
    for index in order:
        groups.append(([values[index]], [index]))
        while len(groups) > 1:
            (left, lower), (right, upper) = groups[-2:]
            if centre(right, gap) - centre(left, gap) >= gap * len(left):
                break
            groups[-2:] = [(left + right, lower + upper)]
    moved = list(values)
    for wanted, members in groups:
        for place, index in enumerate(members):
            moved[index] = centre(wanted, gap) + place * gap
    return moved


def centre(wanted: list[float], gap: float) -> float:
    """Where the first of a touching group lies."""
    return sum(value - place * gap for place, value in enumerate(wanted)) / len(wanted)
