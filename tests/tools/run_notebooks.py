"""Run notebooks and store their outputs so that a second run changes no byte.

    python tests/tools/run_notebooks.py notebooks/*.ipynb           rewrites the notebooks whose outputs changed
    python tests/tools/run_notebooks.py --check notebooks/*.ipynb   rewrites nothing, exit code 1 if one is stale

Stored: cell ids, execution counts and outputs. Not stored: times of execution, the state of widgets, who ran it.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import sys
import time

import nbformat
from nbclient import NotebookClient

WIDGET = "application/vnd.jupyter.widget-view+json"
FROM_EDITORS = ("execution", "ExecuteTime", "collapsed", "scrolled", "trusted")
METADATA = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"}}


def read(path: pathlib.Path):
    """The notebook at `path`; a cell without an id gets one made from its text, so it is the same every time."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    taken = {cell["id"] for cell in raw["cells"] if "id" in cell}
    for cell in raw["cells"]:
        number = 0
        while "id" not in cell:
            source = "".join(cell["source"])
            name = hashlib.sha256(f"{number} {source}".encode()).hexdigest()[:8]
            if name not in taken:
                cell["id"] = name
                taken.add(name)
            number += 1
    raw["nbformat"], raw["nbformat_minor"] = 4, 5
    return nbformat.reads(json.dumps(raw), as_version=4)


def clean(notebook):
    """Take out of `notebook` what differs from run to run or from machine to machine; returns it."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for key in FROM_EDITORS:
            cell.metadata.pop(key, None)
        for output in cell.get("outputs", []):
            # A widget is drawn by a kernel; until a cell is run its static picture or text stands there.
            output.get("data", {}).pop(WIDGET, None)
            if output.output_type == "error":
                output.traceback = output.traceback[-1:]  # the frames above it name files of this machine
    return notebook


def execute(notebook, folder: pathlib.Path):
    """Run all cells from the top in `folder`; returns the notebook with the new outputs. Raises at the first error."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False, store_widget_state=False,
                            coalesce_streams=True, resources={"metadata": {"path": str(folder)}})
    return client.execute()


def side_by_side(work, paths):
    """`work(path)` for each path in their order; as many at once as there are cores, since kernels are processes."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from zip(paths, pool.map(work, paths), strict=True)


def write(notebook) -> str:
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="only say which are stale")
    arguments = parser.parse_args()
    stale = []

    def run(path):
        start = time.monotonic()
        return write(clean(execute(read(path), path.parent))), time.monotonic() - start

    for path, (after, seconds) in side_by_side(run, arguments.notebooks):
        same = after == path.read_text(encoding="utf-8")
        print(f"{path}: {seconds:.1f} s, {'unchanged' if same else 'changed'}", flush=True)
        if not same:
            stale.append(path)
            if not arguments.check:
                path.write_text(after, encoding="utf-8")
    print(f"{len(arguments.notebooks)} run, {len(stale)} {'stale' if arguments.check else 'rewritten'}")
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
