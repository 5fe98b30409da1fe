"""Give every cell that has none a place in the slides: `slideshow.slide_type` in its metadata.

    python tests/tools/set_slides.py notebooks/*.ipynb

A cell that starts with a heading begins a slide (a heading of level 3 or more, and a code cell that draws, a sub-slide
below it), a solution is left out of the slides, everything else follows on. What a cell already says is kept.
"""

import pathlib
import re
import sys

from run_notebooks import read, write
from student_copy import is_solution


def slide_type(cell) -> str:
    if is_solution(cell):
        return "skip"
    if cell.cell_type == "markdown":
        heading = re.match(r"(#+) ", cell.source.lstrip())
        if heading:
            return "slide" if len(heading.group(1)) <= 2 else "subslide"
    if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
        return "subslide"
    return "-"


def main() -> int:
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        notebook = read(path)
        for cell in notebook.cells:
            cell.metadata.setdefault("slideshow", {}).setdefault("slide_type", slide_type(cell))
        path.write_text(write(notebook), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
