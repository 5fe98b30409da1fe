"""What a traceback says: the reader's own line, and phase and role where a frame shows them."""

import dataclasses
import re

from helpers.torch_private import FRAMES_OF_BACKWARD, FRAMES_OF_FORWARD, FRAMES_OF_PARAMETERS, FRAMES_OF_STATE

LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|\\lib\\|^torch/|^<frozen|^<string>|^\?\?|^$")
CELL = re.compile(r"ipykernel_\d+|^<ipython-input")
UNKNOWN = "unknown"
NOWHERE = "(no Python frame)"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a request came from.

    line: the reader's innermost line, "model.py:41 in forward". inside: the innermost line outside PyTorch, where that
    is a library's. phase: "forward", "backward", "optimizer step" or "unknown"; role: "parameters", "gradients",
    "optimizer state" or "unknown": only what a frame shows. in_model: asked for while a module was called.
    """

    line: str
    inside: str
    phase: str
    role: str
    in_model: bool


def label(filename: str, line: int, name: str) -> str:
    """A line in few words; a notebook's cell has no name that lasts."""
    short = "cell" if CELL.search(filename) else re.split(r"[/\\]", filename)[-1]
    return f"{short}:{line} in {name}"


def place_of(frames: list[tuple[str, int, str]]) -> Place:
    """frames: (filename, line, name), innermost first."""
    own = inside = ""
    backward = optimizer = forward = state = parameters = gradients = False
    for filename, line, name in frames:
        path = filename.replace("\\", "/")
        if "::" in name or path.endswith((".cpp", ".h", ".cu")):  # C++
            backward = backward or "torch::autograd::Engine::" in name
            gradients = gradients or "AccumulateGrad" in name
            continue
        in_torch = "site-packages/torch/" in path or path.startswith("torch/") or "dist-packages/torch/" in path
        if not in_torch and not inside and not path.startswith(("<frozen", "<string>")):
            inside = label(filename, line, name)
        if not own and not LIBRARY.search(path):
            own = label(filename, line, name)
        if in_torch:
            if path.endswith(("torch/autograd/graph.py", "torch/autograd/__init__.py", "torch/_tensor.py")):
                backward = backward or name in FRAMES_OF_BACKWARD
            elif "torch/optim/" in path and not path.endswith("lr_scheduler.py"):
                optimizer, state = True, state or name in FRAMES_OF_STATE
            elif path.endswith("torch/nn/modules/module.py"):
                forward = forward or name in FRAMES_OF_FORWARD
                parameters = parameters or name in FRAMES_OF_PARAMETERS
            if "torch/nn/modules/" in path and name in ("__init__", "reset_parameters"):
                parameters = True
    phase = "optimizer step" if optimizer else "backward" if backward else "forward" if forward else UNKNOWN
    role = ("optimizer state" if state else "gradients" if gradients else
            "parameters" if parameters and phase == UNKNOWN else UNKNOWN)
    if not own:
        own = f"({phase})" if phase != UNKNOWN else NOWHERE
    return Place(own, inside if inside != own else "", phase, role, forward and phase == "forward")


class Places:
    """The places of all tracebacks of a file, each worked out once. `places[number]` is one."""

    def __init__(self):
        self.places, self.by_identity, self.by_text, self.kept = [], {}, {}, []

    def number(self, frames) -> int:
        """The number of the place of a list of frame dictionaries; PyTorch shares these between events."""
        if not isinstance(frames, list):
            frames = []
        key = tuple(map(id, frames))
        found = self.by_identity.get(key)
        if found is None:
            self.kept.append(frames)  # so that no other list gets the same identities
            text = tuple(filter(None, map(plain, frames)))
            found = self.by_text.get(text)
            if found is None:
                found = self.by_text[text] = len(self.places)
                self.places.append(place_of(text))
            self.by_identity[key] = found
        return found

    def done(self) -> list[Place]:
        self.by_identity, self.by_text, self.kept = {}, {}, []
        return self.places


def plain(frame) -> tuple[str, int, str] | None:
    """(filename, line, name) of a frame dictionary, or None for what is none."""
    if not isinstance(frame, dict):
        return None
    filename, line, name = frame.get("filename", ""), frame.get("line", 0), frame.get("name", "")
    if not (isinstance(filename, str) and isinstance(name, str)):
        return None
    return filename, line if isinstance(line, int) else 0, name
