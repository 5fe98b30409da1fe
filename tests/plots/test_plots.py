"""What the pictures show is what the runs say: lengths, lines, labels, words, and the same bytes every time."""

import io
import itertools
import subprocess
import sys

import matplotlib
import pytest
from matplotlib.colors import to_rgb

from helpers import plots
from helpers.lessons.display import to_png
from helpers.measuring.run import ROLES, Timeline
from helpers.plots.one_run import thinned
from helpers.plots.style import COLOURS, HATCHES, spread
from helpers.plots.sweeps import straight_line
from helpers.units import GiB, MiB
from tests.measuring.factories import made_up_run
from tests.plots.figures import FIGURES, fragmented, parts, words


@pytest.fixture(params=FIGURES, ids=lambda name: name.replace(" ", "-"))
def make(request):
    return FIGURES[request.param]


def test_every_picture_has_a_message_and_words(make):
    figure = make()
    title, alt = figure.axes[0].get_title(loc="left"), plots.describe(figure)
    assert title and max(map(len, title.split("\n"))) <= 70
    assert len(alt) > 60 and alt.endswith(".") and ".." not in alt
    assert any(digit in alt for digit in "123456789")


def test_every_memory_picture_has_the_line_of_the_card(make):
    figure = make()
    if "GiB with" in plots.describe(figure) or "test card" in plots.describe(figure):
        lines = [line for ax in figure.axes for line in ax.lines if len(line.get_xdata()) == 2]
        ends = {tuple(line.get_ydata()) for line in lines} | {tuple(line.get_xdata()) for line in lines}
        assert (8.0, 8.0) in ends and "test card: 8.0 GiB" in words(figure)


def test_bytes_are_the_same_every_time_and_carry_the_words(make):
    figure = make()
    first = to_png(figure)
    assert first == to_png(make()) and first == to_png(figure)
    assert first.startswith(b"\x89PNG") and b"Description" in first and b"Software" not in first


def test_writing_is_large_enough_and_inside(make):
    figure = make()
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 9
    frame = figure.bbox
    for ax in figure.axes:
        box = ax.get_tightbbox()
        assert box.x0 >= -1 and box.x1 <= frame.x1 + 1 and box.y0 >= -1 and box.y1 <= frame.y1 + 1


def test_the_readers_style_changes_nothing_and_is_left_alone(make):
    plain = to_png(make())
    with matplotlib.rc_context({"axes.facecolor": "black", "text.color": "white", "font.size": 20, "savefig.dpi": 30}):
        before = {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if not name.startswith("backend")}
        assert to_png(make()) == plain
        assert {name: matplotlib.rcParams[name] for name in before} == before


def test_pyplot_is_not_needed():
    code = ("import sys, helpers; print('matplotlib' in sys.modules)\n"
            "from helpers import plots; from helpers.lessons.display import to_png\n"
            "to_png(plots.curves({'a': [2, 1]})); print('matplotlib.pyplot' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"], "helpers imports fast, and plots leave no state"


def test_neighbours_differ_in_grey():
    def lightness(role):
        red, green, blue = to_rgb(COLOURS[role])
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert set(COLOURS) == set(ROLES) and len(set(COLOURS.values())) == len(ROLES)
    shown = [role for role in ROLES if role != "batch"]  # a batch is too small to be seen
    pairs = [*itertools.pairwise(shown), ("parameters", "optimizer state"), ("parameters", "activations")]
    for one, other in pairs:
        assert abs(lightness(one) - lightness(other)) > 0.12 or (one in HATCHES) != (other in HATCHES), (one, other)


def test_breakdown_bars_are_as_long_as_the_roles():
    run = made_up_run(1)
    figure = plots.breakdown({"one": run})
    for role in ROLES:
        (bar,) = parts(figure, role)
        assert bar.get_width() == pytest.approx(run.roles_at_peak[role] / GiB)
    assert parts(figure, "total")[0].get_text() == "5.8 GiB" and not parts(figure, "request")
    assert figure.axes[0].get_title(loc="left") == "Optimizer state is 35 % of one"
    assert plots.breakdown({"two": made_up_run(2)}).axes[0].get_title(loc="left") == "Activations are 52 % of two"


def test_a_failure_is_marked_by_pattern_and_word_above_the_line():
    run = made_up_run(4, fits=False)
    for figure in (plots.breakdown({"four": run}), plots.timeline(run)):
        (bar,) = parts(figure, "request")
        lying = bar.get_height() == 0.62
        end = bar.get_x() + bar.get_width() if lying else bar.get_y() + bar.get_height()
        assert bar.get_hatch() and end > run.capacity / GiB
    assert "out of memory" in words(plots.breakdown({"four": run}))
    assert "256.00 MiB more do not fit" in words(plots.timeline(run))
    assert "asking for 256.00 MiB more" in plots.describe(plots.timeline(run))


def test_timeline_marks_the_peak_and_names_phases():
    run = made_up_run()
    figure = plots.timeline(run)
    (peak,) = parts(figure, "peak")
    assert peak.get_xdata()[0] == run.timeline.peak and peak.get_ydata()[0] == run.peak_allocated / GiB
    names = [text.get_text() for text in parts(figure, "phase")]
    assert len(names) == 7 and names[0] == "setup" and names.count("backward") == 2
    assert "step 1" in words(figure) and "step 2" in words(figure) and "step 3" not in words(figure)
    assert {text.get_text() for text in parts(figure, "role")} >= {"activations", "optimizer state", "parameters"}
    with pytest.raises(ValueError, match="no timeline"):
        plots.timeline(made_up_run(timeline=Timeline([], [], {role: [] for role in ROLES}, None, 0)))


def test_a_long_timeline_is_thinned_and_keeps_peak_and_valleys():
    sizes = [100 + i % 7 for i in range(20_000)]
    sizes[12_345], sizes[777] = 900, 1
    by_role = {role: sizes if role == "activations" else [0] * len(sizes) for role in ROLES}
    line = Timeline(["forward"] * len(sizes), [0] * len(sizes), by_role, None, 12_345)
    keep = thinned(line, len(sizes))
    assert len(keep) < 700 and {0, 777, 12_345, 19_999} <= set(keep) and keep == sorted(set(keep))
    assert thinned(line, 10) == list(range(10))


def test_batch_sweep_draws_the_line_through_what_fits():
    runs = [made_up_run(1), made_up_run(2), made_up_run(3, fits=False)]
    fixed, each = straight_line(runs)
    assert each == pytest.approx(2 * GiB) and fixed == pytest.approx(3.75 * GiB + 4 * MiB)
    assert straight_line(runs[:1]) is None
    figure = plots.batch_sweep(runs)
    (line,), (cross,) = parts(figure, "line"), parts(figure, "fails")
    assert line.get_ydata() == pytest.approx([fixed / GiB, (fixed + 3 * each) / GiB])
    assert cross.get_ydata() == pytest.approx([(fixed + 3 * each) / GiB])
    assert figure.axes[0].get_title(loc="left") == "Each document costs 2.0 GiB: batch 2 is the last that fits"
    assert not parts(plots.batch_sweep(runs[:1]), "line")
    assert "nothing fits" in plots.describe(plots.batch_sweep(runs[2:]))


def test_two_sweeps_show_where_they_cross():
    flat = [made_up_run(1, peak_allocated=6 * GiB), made_up_run(3, peak_allocated=7 * GiB)]
    steep = [made_up_run(1, peak_allocated=5 * GiB), made_up_run(3, peak_allocated=8 * GiB)]
    figure = plots.batch_sweep({"flat": flat, "steep": steep})
    (ring,) = parts(figure, "crossing")
    assert ring.get_xdata() == pytest.approx([2.0]) and "below batch 2.0 flat needs more" in words(figure)
    assert not parts(FIGURES["two sweeps"](), "crossing")


def test_ladder_gives_peak_change_and_largest_batch():
    figure = FIGURES["ladder"]()
    columns = {name: [text.get_text() for text in parts(figure, name)] for name in ("peak", "change", "largest\nbatch")}
    assert columns == {"peak": ["> 7.9 ✗", "5.8", "4.8"], "change": ["", "", "−1.0"], "largest\nbatch": ["2", "", "9"]}


def test_runs_from_a_larger_card_are_judged_by_the_capacity():
    run = made_up_run(4, capacity=80 * GiB)
    assert "11.8 GiB: too much" in words(plots.breakdown({"four": run}, capacity=8 * GiB))
    assert "too much" not in words(plots.breakdown({"four": run}))
    assert "✗" in words(plots.ladder([("four", run, 1)], capacity=8 * GiB))


def test_batch_sweep_close_up_shows_the_lines_alone():
    figure = plots.batch_sweep([made_up_run(size) for size in (1, 2)], unit="sequence", close_up=True)
    axes = figure.axes[0]
    assert axes.get_ylim()[0] > 0 and axes.get_xlabel() == "batch size (sequences)"
    assert "a sequence" in plots.describe(figure) and "Each sequence costs" in words(figure)


def test_trade_fills_what_is_worth_choosing_and_labels_do_not_overlap():
    figure = FIGURES["trade"]()
    filled = [parts(figure, label)[0].get_markerfacecolor() != "white" for label in ("baseline", "half", "worse")]
    assert filled == [True, True, False]
    equal = made_up_run(2)
    figure = plots.trade({"first": (1.0, equal), "the same again": (1.0, equal), "a hair less": (1.2, made_up_run(2))})
    assert [parts(figure, label)[0].get_markerfacecolor() != "white" for label in (
        "first", "the same again", "a hair less")] == [True, False, False]
    crowd = plots.trade({f"technique number {i}": (1.0 + i / 500, made_up_run(2, activations=1 + i / 100))
                         for i in range(7)})
    crowd.draw_without_rendering()
    boxes = [matplotlib.text.Text.get_window_extent(text) for text in parts(crowd, "label")]
    assert len(boxes) == 7 and not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_combinations_are_sorted_and_marked_by_shape():
    figure = FIGURES["combinations"]()
    fits, fails = parts(figure, "fits"), parts(figure, "fails")
    assert len(fits) + len(fails) == 32 and fits and fails
    assert {line.get_marker() for line in fits} == {"o"} and {line.get_marker() for line in fails} == {"X"}
    heights = [line.get_ydata()[0] for line in fits + fails]
    assert heights == sorted(heights) and max(line.get_ydata()[0] for line in fits) <= 8 < fails[0].get_ydata()[0]
    assert sum(len(line.get_ydata()) for line in parts(figure, "on")) == 5 * 16
    assert figure.axes[0].get_title(loc="left").startswith(f"{len(fits)} of 32 combinations fit")
    with pytest.raises(ValueError, match="not among"):
        plots.combinations([({"magic"}, made_up_run())], ["AMP"])


def test_segments_draw_every_byte_and_the_request():
    figure = FIGURES["segments"]()
    free, used = (sum(part.get_width() for part in parts(figure, kind)) for kind in ("free", "in use"))
    assert free == pytest.approx(12 * 200 * MiB / GiB) and used == pytest.approx(free)
    assert len(parts(figure, "segment")) == 24 and parts(figure, "request")[0].get_width() == pytest.approx(500 / 1024)
    assert figure.axes[0].get_title(loc="left") == "2.34 GiB are free, but no piece is as large as 500.00 MiB"
    assert "the largest piece is 200.00 MiB" in words(plots.segments(fragmented(), request=100 * MiB))
    with pytest.raises(ValueError, match="holds no memory"):
        plots.segments([])


def test_wrong_arguments_are_one_sentence():
    with pytest.raises(TypeError, match="needs at least one Run"):
        plots.breakdown({})
    with pytest.raises(TypeError, match="needs at least one Run"):
        plots.timeline("run")
    with pytest.raises(ValueError, match="none of them empty"):
        plots.curves({"float32": []})
    with pytest.raises(TypeError, match="describe needs"):
        plots.describe(3)


def test_spread_moves_apart_and_keeps_order():
    assert spread([1.0, 5.0], 1) == [1.0, 5.0]
    assert spread([2.0, 2.0], 1) == [1.5, 2.5]
    assert spread([3.0, 1.0, 1.2, 1.1], 1) == pytest.approx([3.075, 0.075, 2.075, 1.075])
    assert [b - a >= 0.999 for a, b in itertools.pairwise(sorted(spread([0, 0.1, 0.2, 0.9, 4], 1)))] == [True] * 4


def test_a_run_in_words():
    text = plots.describe(made_up_run())
    assert text.startswith("batch 2: fits, peak 7.75 GiB") and "activations 4.00 GiB" in text
    assert "at the error" in plots.describe(made_up_run(fits=False))


def test_show_gives_a_notebook_picture_and_words(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **kwargs: shown.append((data, kwargs)))
    figure = FIGURES["breakdown"]()
    words_of_it, png = plots.describe(figure), to_png(figure)
    assert plots.show(figure) is None
    (picture, how), (text, also) = shown
    assert picture == {"image/png": png, "text/plain": words_of_it}
    assert how == {"raw": True, "metadata": {"image/png": {"width": 700, "alt": words_of_it}}}
    assert text["text/plain"] == words_of_it and "<details>" in text["text/html"] and also == {"raw": True}
    plots.show(figure)
    assert shown[2:] == shown[:2], "a cell can be run again"
    with pytest.raises(TypeError):
        plots.show(io.BytesIO())
