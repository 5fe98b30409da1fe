"""Showing a figure so that everybody gets it: as a picture, as its sentence, and the same bytes every time."""

import html
import io

from helpers.measuring.run import ROLES, Run
from helpers.units import GiB

DPI = 150  # dots for each of the figure's inches: sharp on a screen with small pixels
SCREEN = 100  # pixels for each inch in the notebook: a figure is 7 inches, 700 pixels, wide


def describe(thing) -> str:
    """The alternative text of a figure from `helpers.plots`, or a `Run` in words.

    Raises TypeError for anything else.
    """
    if isinstance(thing, Run):
        sizes = {role: size for role, size in thing.roles_at_peak.items() if size}
        parts = ", ".join(f"{role} {sizes[role] / GiB:.2f} GiB" for role in ROLES if role in sizes)
        return f"{thing}; {'at the peak' if thing.fits else 'at the error'}: {parts or 'nothing'}."
    if hasattr(thing, "alt_text"):
        return thing.alt_text
    raise TypeError(f"describe needs a Run or a figure from helpers.plots, got {type(thing).__name__}.")


def to_png(figure) -> bytes:
    """The picture, with its alternative text inside the file. The same figure gives the same bytes."""
    import matplotlib.style

    buffer = io.BytesIO()
    with matplotlib.style.context("default"):  # a reader's own style must not change the picture
        figure.savefig(buffer, format="png", dpi=DPI, facecolor=figure.get_facecolor(),
                       metadata={"Software": None, "Description": describe(figure)})
    return buffer.getvalue()


def show(figure) -> None:
    """Display a figure of `helpers.plots` in a notebook, and under it, folded, the same in words.

    JupyterLab gives its pictures no alternative text, whatever the output says, so the words are an output of their
    own. The metadata is for the programs that do read it, such as nbconvert's classic
    template. nbval compares the words.
    """
    from IPython.display import display

    words = describe(figure)
    width = round(figure.get_size_inches()[0] * SCREEN)
    display({"image/png": to_png(figure), "text/plain": words},
            metadata={"image/png": {"width": width, "alt": words}}, raw=True)
    folded = f"<details><summary>This picture in words</summary>{html.escape(words)}</details>"
    display({"text/html": folded, "text/plain": words}, raw=True)
