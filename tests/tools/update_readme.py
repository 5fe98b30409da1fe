"""Put the ladder of notebook 07 into the README: its table from the stored outputs, its picture beside the notebooks.

    python tests/tools/update_readme.py           rewrites what is stale
    python tests/tools/update_readme.py --check   rewrites nothing, exit code 1 if the README or the picture is stale

The outputs of 07 are compared with a new run by every `make test`, so the README says what the code does.
"""

import base64
import pathlib
import re
import sys

import nbformat

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = "notebooks/07_all_together.ipynb"
PICTURE = "notebooks/ladder.png"
BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
ROW = re.compile(r"^(\S.*?) +([\d.]+ GiB|does not fit) +largest batch (\w+)$", re.M)
PARTS = {"measure-alone": "Each alone", "measure-cumulative": "One after the other",
         "measure-far": "AMP (bfloat16) and checkpointing, then past the advice"}
NAMES = {"baseline": "the baseline, float32", "amp": "mixed precision (float16)", "checkpointing": "checkpointing",
         "projection": "projection to width 1024", "accumulation": "accumulation, 2 × 2",
         "clear_cache": "clearing the cache", "start": "bfloat16 and checkpointing"}


def outputs(cell_id: str) -> list:
    cells = nbformat.read(ROOT / NOTEBOOK, as_version=4).cells
    return next(cell.outputs for cell in cells if cell.id == cell_id)


def ladder() -> tuple[str, bytes]:
    """The README's block, and the picture."""
    data = next(output.data for output in outputs("plot-cumulative") if "image/png" in output.get("data", {}))
    words = next(output.data["text/plain"] for output in outputs("plot-cumulative")
                 if "image/png" not in output.get("data", {}))
    lines = [f"![{words}]({PICTURE})", "", "| | peak at batch 4 | largest batch |", "| --- | ---: | ---: |"]
    for cell, title in PARTS.items():
        lines.append(f"| **{title}** | | |")
        for label, peak, largest in ROW.findall("".join(output.get("text", "") for output in outputs(cell))):
            plus, name = ("+ ", label[2:]) if label.startswith("+ ") else ("", label)
            lines.append(f"| {plus}{NAMES.get(name, name)} | {peak} | {largest} |")
    lines += ["", f"Made from the outputs of [`07_all_together`]({NOTEBOOK}) by `make notebooks`: on the simulated RTX "
                  "3090, with 22.5 GiB for PyTorch; peaks as allocated."]
    return "\n".join(lines), base64.b64decode(data["image/png"])


def main() -> int:
    check = "--check" in sys.argv[1:]
    text, picture = ladder()
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        print(f"README.md needs {BEGIN} and {END} once each.")
        return 1
    before, after = old.split(BEGIN)[0], old.split(END)[1]
    new = f"{before}{BEGIN}\n{text}\n{END}{after}"
    path = ROOT / PICTURE
    stale = [name for name, is_stale in (("README.md", new != old), (PICTURE, not path.exists() or
                                                                    path.read_bytes() != picture)) if is_stale]
    if not check:
        readme.write_text(new, encoding="utf-8")
        path.write_bytes(picture)
    print("stale:" if check else "rewritten:", ", ".join(stale) or "nothing")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
