"""The planner of notebook 08: controls, a verdict and pictures around `helpers.planner.planning`."""

import asyncio
import html

import ipywidgets as widgets

from helpers import plots
from helpers.cards.catalogue import CARDS
from helpers.lessons.display import SCREEN, describe, to_png
from helpers.model import ATTENTIONS, FUSIONS
from helpers.planner.choices import OPTIMIZERS, PRECISIONS, Choices
from helpers.planner.planning import Plan, planning, save_snapshot
from helpers.units import GiB

SETTLE = 0.02  # seconds to wait for the next change of a slider that is being dragged
IDLE = 0.4  # seconds without a change before the rest of the answer is computed
BREATHE = 0.03  # seconds between two runs, in which the kernel does something else

SNAPSHOT = "planned.pickle"  # written beside the notebook

NUMBERS = {"batch": (1, 48), "pages": (1, 10), "depth": (1, 18)}
STEPS = {"card": sorted(CARDS, key=lambda name: CARDS[name].capacity), "seq_len": (128, 256, 512, 1024, 2048),
         "width": (448, 896, 1344, 1792, 2240, 2688, 3584), "heads": (7, 14, 28, 56)}
BUTTONS = {"fusion": FUSIONS, "precision": tuple(PRECISIONS), "attention": ATTENTIONS, "optimizer": tuple(OPTIMIZERS),
           "checkpointing": (("off", False), ("every block", True)), "accumulation": (1, 2, 4)}
BOX = "padding:2px 10px; line-height:1.5; border-left:6px solid"
WORDS = {"seq_len": "tokens", "depth": "blocks"}


def make_controls(choices: Choices) -> dict[str, widgets.Widget]:
    """One control for each field of `Choices`, by name. None is a drop-down list: the keyboard moves all of them."""
    found = {}
    for name in choices.__dataclass_fields__:
        options = {"value": getattr(choices, name), "description": WORDS.get(name, name),
                   "style": {"description_width": "95px"}, "layout": {"width": "auto"}}
        if name in NUMBERS:
            low, high = NUMBERS[name]
            found[name] = widgets.IntSlider(min=low, max=high, **options)
        elif name in STEPS:
            found[name] = widgets.SelectionSlider(options=STEPS[name], **options)
        else:
            options["style"] = {"description_width": "auto", "button_width": "auto"}
            options["layout"]["margin"] = "2px 24px 2px 2px"
            found[name] = widgets.ToggleButtons(options=BUTTONS[name], **options)
    return found


def draw_breakdown(plan: Plan):
    return plots.breakdown({f"batch {plan.choices.batch}": plan.run})


def draw_timeline(plan: Plan):
    """The picture that says in its title what was chosen."""
    return plots.timeline(plan.run, title=f"{plan.choices.card}: {plan.choices}")


PICTURES = {"breakdown": draw_breakdown, "timeline": draw_timeline}  # the quicker one first


def in_html(plan: Plan) -> str:
    """Verdict, largest batch and cures; what is not known yet says so."""
    mark, colour = ("✓", "#009E73") if plan.run.fits else ("✗", "#D55E00")
    rows = [f"<b>{mark} {html.escape(plan.verdict)}</b>"]
    if plan.needed is not None:
        rows.append(f"It would need {plan.needed.peak_reserved / GiB:.2f} GiB.")
    rows.append(f"Largest batch: <b>{'…' if plan.largest is None else plan.largest}</b>")
    if not plan.run.fits:
        cures = plan.cures or ()
        listed = "".join(f"<li>{html.escape(str(cure))}</li>" for cure in cures)
        rows.append("Looking for what would make it fit …" if plan.cures is None else
                    f"It would fit with<ol style='margin:0'>{listed}</ol>" if cures else
                    "No two switches make it fit: choose a smaller batch, model or sequence.")
    lines = "".join(f"<div>{row}</div>" for row in rows)
    return f"<div style='{BOX} {colour}; min-height:9.5em'>{lines}</div>"


class Planner(widgets.VBox):
    """Choose, and see what it needs. `planner.plan` is the last answer; `planner.controls` are the widgets by name;
    `planner.pictured` is the choice that the pictures show.

    The first answer is complete when the planner is made. After a change the pictures come first; largest batch and
    cures follow when nothing changes for a moment, one run at a time, so that the kernel stays free for others. Before
    the cell has been run, and where widgets do not work, a picture and a text stand in its place.
    """

    def __init__(self, **choices):
        self.controls = make_controls(Choices(**choices))
        self.verdict = widgets.HTML()
        self.images = {name: widgets.Image(format="png", layout={"width": "100%", "max_width": f"{7 * SCREEN}px"})
                       for name in PICTURES}
        self.task = None
        self.save = widgets.Button(description="save snapshot", tooltip="the run's memory snapshot, as PyTorch's")
        self.save.on_click(lambda button: self._try(self._save))
        self.saved = widgets.Label()
        sliders = [control for name, control in self.controls.items() if name not in BUTTONS]
        columns = {"grid_template_columns": "repeat(auto-fit, minmax(min(100%, 300px), 1fr))", "width": "100%"}
        buttons = widgets.HBox([self.controls[name] for name in BUTTONS], layout={"flex_flow": "row wrap"})
        super().__init__([widgets.GridBox(sliders, layout=columns), buttons, self.verdict,
                          widgets.HBox([self.save, self.saved]), *self.images.values()])
        self._answer_at_once()
        for control in self.controls.values():
            control.observe(self._changed, "value")

    def choices(self) -> Choices:
        """What the controls say; ValueError, one sentence, where it cannot be."""
        return Choices(**{name: control.value for name, control in self.controls.items()})

    def _answer_at_once(self) -> None:
        for plan in planning(self.choices()):
            self.plan = plan
        for name, draw in PICTURES.items():
            self.images[name].value = to_png(draw(self.plan))
        self.verdict.value = in_html(self.plan)
        self._show_pictures(True)
        self.pictured = self.plan.choices

    def _changed(self, change) -> None:
        self.close_task()
        try:
            self.task = asyncio.get_running_loop().create_task(self._answer())
        except RuntimeError:  # no event loop: a script
            self._try(self._answer_at_once)

    async def _answer(self) -> None:
        try:
            await asyncio.sleep(SETTLE)
            choices = self.choices()
            answers = planning(choices)
            self.plan = next(answers)
            self.verdict.value = in_html(self.plan)
            self._show_pictures(True)
            for name, draw in PICTURES.items():
                self.images[name].value = to_png(draw(self.plan))
                await asyncio.sleep(0)
            self.pictured = choices
            await asyncio.sleep(IDLE)
            for self.plan in answers:
                self.verdict.value = in_html(self.plan)
                await asyncio.sleep(BREATHE)
        except Exception as error:
            self._complain(error)

    def _save(self) -> None:
        """Write the snapshot of what the controls say into the notebook's folder."""
        self.saved.value = "…"
        save_snapshot(self.choices(), SNAPSHOT)
        self.saved.value = f"{SNAPSHOT} is written: open_snapshot({SNAPSHOT!r}) reads it."

    def _try(self, function) -> None:
        try:
            function()
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """An error in a callback would be lost in a log: show it here."""
        kind = "" if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: "
        self.verdict.value = f"<div style='{BOX} #D55E00'>{kind}{html.escape(str(error))}</div>"
        self._show_pictures(False)

    def _show_pictures(self, visible: bool) -> None:
        for image in self.images.values():
            image.layout.display = None if visible else "none"

    def close_task(self) -> None:
        """Stop computing the answer to a choice that is no longer the choice."""
        if self.task is not None:
            self.task.cancel()
        self.task = None

    def close(self) -> None:
        self.close_task()
        super().close()

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        figure = draw_timeline(self.plan)
        still = {"text/plain": f"Planner\n{self.plan}\n{describe(figure)}", "image/png": to_png(figure)}
        return data | still, metadata | {"image/png": {"width": 7 * SCREEN, "alt": describe(figure)}}
