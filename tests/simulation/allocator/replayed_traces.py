"""What the replay of every recorded trace compared: makes tests/data/replayed_traces.json.

    TRACES=folder python tests/simulation/allocator/replayed_traces.py > tests/data/replayed_traces.json
"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from tests.simulation.allocator.replay import load, replay

COMMAND = "TRACES=folder python tests/simulation/allocator/replayed_traces.py"


def counts(folder: str) -> dict:
    traces = {}
    for path in sorted(pathlib.Path(folder).glob("*.json.gz")):
        _, differences, compared = replay(load(path))
        traces[path.name.removesuffix(".json.gz")] = {**compared, "differences": len(differences)}
    return {"command": COMMAND, "traces": traces}


if __name__ == "__main__":
    print(json.dumps(counts(os.environ["TRACES"]), indent=1))
