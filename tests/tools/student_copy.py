"""Copy the notebooks without their solutions and outputs, for a class.

    python tests/tools/student_copy.py notebooks student         makes the folder student/ anew
    python tests/tools/student_copy.py --run notebooks student   also runs each copy

The notebooks stay the only source: a cell tagged "solution" is left out, all others are copied as they are. With --run
every cell of a copy must work without the answers, also when it is run twice, and say in text what it says in the
notebook.
"""

import argparse
import ast
import builtins
import copy
import pathlib
import shutil
import sys

from IPython.core.inputtransformer2 import TransformerManager
from run_notebooks import clean, execute, read, side_by_side, write

FOR_TEACHERS = ("workshop.md",)
AGAIN = "-again"  # end of the id of a cell that is run a second time


def is_solution(cell) -> bool:
    return "solution" in cell.metadata.get("tags", [])


def without_solutions(notebook):
    """`notebook` less its solution cells and all outputs; changes it and returns it."""
    notebook.cells = [cell for cell in notebook.cells if not is_solution(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return clean(notebook)


def names(source: str) -> tuple[set[str], set[str]]:
    """Names that a cell binds, and names that it reads and Python itself does not define."""
    bound, read_names = set(), set()
    for node in ast.walk(ast.parse(TransformerManager().transform_cell(source))):
        if isinstance(node, ast.Name):
            (read_names if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    return bound, read_names - set(dir(builtins))


def needed_solutions(notebook) -> list[str]:
    """Names that a cell outside the solutions reads, and that only a solution before it has bound."""
    in_solutions, elsewhere, problems = set(), set(), []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        bound, read_names = names(cell.source)
        if is_solution(cell):
            in_solutions |= bound
            continue
        elsewhere |= bound
        problems += [f"cell {number}: {name}" for name in sorted(read_names & in_solutions - elsewhere)]
    return problems


def text_outputs(cell) -> list:
    """What a cell says in text: printed text and values, without pictures."""
    said = [output.get("text") or output.get("data", {}).get("text/plain") or output.get("evalue")
            for output in cell.get("outputs", [])]
    return [text for text in said if text]


def each_twice(notebook):
    """Every code cell of `notebook` twice in a row, as an impatient reader runs it; returns the notebook."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            cells.append(copy.deepcopy(cell))
            cells[-1].id += AGAIN
    notebook.cells = cells
    return notebook


def differences(original, run) -> list[str]:
    """Cells of the copy `run` that say something else than in `original`: they depend on a solution, or on not being
    run twice."""
    before = {cell.id: cell for cell in original.cells}
    return [f"cell {cell.id}: {text_outputs(cell)!r} is {text_outputs(before[cell.id.removesuffix(AGAIN)])!r} in the "
            "notebook" for cell in run.cells
            if cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", [])
            and text_outputs(cell) != text_outputs(before[cell.id.removesuffix(AGAIN)])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--run", action="store_true", help="run each copy unanswered, each cell twice")
    arguments = parser.parse_args()
    if arguments.target.resolve() == arguments.source.resolve():
        parser.error("the copy must not replace the notebooks")
    if arguments.target.exists() and not (arguments.target / ".student-copy").exists():
        parser.error(f"{arguments.target} exists and was not made by this command: remove it or name another folder")
    shutil.rmtree(arguments.target, ignore_errors=True)
    ignore = shutil.ignore_patterns(".*", "__pycache__", "*.ipynb", *FOR_TEACHERS)
    shutil.copytree(arguments.source, arguments.target, ignore=ignore)
    (arguments.target / ".student-copy").write_text("Made by tests/tools/student_copy.py; it is replaced as a whole.\n")
    paths, failed = sorted(arguments.source.glob("*.ipynb")), 0
    for path in paths:
        made = arguments.target / path.name
        made.write_text(write(without_solutions(read(path))), encoding="utf-8")
        print(f"{made}: {sum(map(is_solution, read(path).cells))} solution cells left out", flush=True)

    def run(path):
        return differences(read(path), execute(each_twice(read(arguments.target / path.name)), arguments.target))

    for path, problems in side_by_side(run, paths) if arguments.run else ():
        failed += bool(problems)
        for line in problems or ["runs unanswered, each cell twice, and says the same"]:
            print(f"{path.name}: {line}", flush=True)
    print(f"{len(paths)} notebooks copied to {arguments.target}" + f", {failed} depend on a solution" * arguments.run)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
