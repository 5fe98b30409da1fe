"""Print what a memory snapshot says.

    python -m helpers.snapshot FILE
    python -m helpers.snapshot FILE --total 23.69 --expandable --max-split-size-mb 128 --capacity 22.5 --picture out.png
"""

import argparse
import sys

from helpers.snapshots.report import report
from helpers.snapshots.snapshot import Snapshot, open_snapshot
from helpers.units import GiB, MiB


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers.snapshot", description=__doc__.split("\n")[0])
    parser.add_argument("file", help="what torch.cuda.memory._dump_snapshot or run.save_snapshot wrote")
    parser.add_argument("--total", type=float, metavar="GIB", help='"total capacity" of the error message')
    parser.add_argument("--device", type=int, help="number of the GPU, if the file has several")
    parser.add_argument("--expandable", action="store_true", help="what if: expandable_segments:True")
    parser.add_argument("--max-split-size-mb", type=int, metavar="MB", help="what if")
    parser.add_argument("--garbage-collection-threshold", type=float, metavar="FRACTION", help="what if")
    parser.add_argument("--roundup-power2-divisions", type=int, metavar="N", help="what if")
    parser.add_argument("--capacity", type=float, metavar="GIB", help="what if PyTorch could have so much")
    parser.add_argument("--picture", metavar="PNG", help="draw memory over time into this file")
    options = parser.parse_args(arguments)
    what_if = {"expandable_segments": options.expandable or None,
               "max_split_size": options.max_split_size_mb and options.max_split_size_mb * MiB,
               "garbage_collection_threshold": options.garbage_collection_threshold,
               "roundup_power2_divisions": options.roundup_power2_divisions,
               "capacity": options.capacity and int(options.capacity * GiB)}
    what_if = {name: value for name, value in what_if.items() if value is not None}
    try:
        snapshot = open_snapshot(options.file, options.total and int(options.total * GiB), options.device)
        print(report(snapshot, **what_if))
    except (ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.picture:
        draw(snapshot, options.picture)
    return 0


def draw(snapshot: Snapshot, path: str) -> None:
    from helpers import plots

    with open(path, "wb") as file:
        file.write(plots.to_png(plots.recording(snapshot)))


if __name__ == "__main__":
    sys.exit(main())
