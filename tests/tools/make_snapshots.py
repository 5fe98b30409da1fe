"""Make the three snapshots that the exercises of 10_read_a_snapshot diagnose.

    python tests/tools/make_snapshots.py notebooks/snapshots           writes a.pickle, b.pickle, c.pickle
    python tests/tools/make_snapshots.py --check notebooks/snapshots   writes nothing, exit code 1 if one is stale

Each is what the simulated card writes of train_a.py, train_b.py or train_c.py beside it. File names in them are
relative: nothing of the machine that made them.
"""

import argparse
import importlib.util
import pathlib
import pickle
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from helpers import GiB, open_card
from helpers.measuring.snapshot_file import snapshot_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The card, what PyTorch can have of it, and the batch size.
CARDS = {"a": ("RTX 3060 12GB", None, 4), "b": ("RTX 3090", 21 * GiB, 3), "c": ("RTX 3090", 9 * GiB, 2)}


def make(folder: pathlib.Path, name: str) -> bytes:
    """The pickle of `name`."""
    card, capacity, batch_size = CARDS[name]
    spec = importlib.util.spec_from_file_location(f"train_{name}", folder / f"train_{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    run = open_card(card, kind="simulated", capacity=capacity).run(script.train, batch_size, record_history=True)
    snapshot = snapshot_of(run.history, failed=True)
    for frame in {id(frame): frame for event in snapshot["device_traces"][0] for frame in event["frames"]}.values():
        path = pathlib.Path(frame["filename"])
        if "site-packages" in path.parts:
            frame["filename"] = "/".join(path.parts[path.parts.index("site-packages"):])
        elif path.is_relative_to(ROOT):
            frame["filename"] = path.relative_to(ROOT).as_posix()
    return pickle.dumps(snapshot, protocol=4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="only say which are stale")
    arguments = parser.parse_args()
    stale = []
    for name in CARDS:
        path, made = arguments.folder.resolve() / f"{name}.pickle", make(arguments.folder.resolve(), name)
        same = path.exists() and path.read_bytes() == made
        print(f"{path.name}: {len(made) / 1024:.0f} KiB, {'unchanged' if same else 'changed'}")
        if not same:
            stale.append(name)
            if not arguments.check:
                path.write_bytes(made)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
