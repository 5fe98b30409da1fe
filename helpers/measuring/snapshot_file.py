"""The memory snapshot of a run: the file that `torch.cuda.memory._dump_snapshot` would have written on a real card.

The keys are those that torch/csrc/cuda/Module.cpp (`THCPModule_memorySnapshot`) writes. Left out, since a simulated
card has none: times. Of the C++ frames, which PyTorch adds to the Python ones, only one is written: autograd's, which
says that a request came from backward (there is no Python frame then).
"""

import os
import pathlib
import pickle

from helpers.measuring.history import CudaHistory, History
from helpers.torch_private import FILES_OF_SIMULATION

HELPERS = str(pathlib.Path(__file__).parents[1]) + os.sep
TORCH = os.path.join("site-packages", "torch", "")
# What stands between the reader's line and the recorder on a simulated card, and is not there on a real one.
OURS = tuple(HELPERS + room for room in ("measuring", "simulation", "cards", "torch_private"))
SIMULATION = tuple(TORCH + name for name in (*FILES_OF_SIMULATION, os.path.join("utils", "_python_dispatch.py")))
BACKWARD = {"name": "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, "
                    "torch::autograd::Node*, torch::autograd::InputBuffer&, std::shared_ptr<torch::autograd::"
                    "ReadyQueue> const&)", "filename": "??", "line": 0}
ACTIONS = {"free": ("free_requested", "free_completed")}  # at once, since there is one stream


def save(run, path) -> None:
    """Write the snapshot of a run that recorded its history; ValueError, one sentence, if it did not."""
    if run.history is None:
        raise ValueError("This run kept no history to save: run it with card.run(..., record_history=True).")
    with open(path, "wb") as file:
        pickle.dump(snapshot_of(run.history, not run.fits), file, protocol=4)


def snapshot_of(history: History | CudaHistory, failed: bool) -> dict:
    """The snapshot as PyTorch's readers want it; of a run that failed, as it was at the error."""
    if isinstance(history, CudaHistory):
        return history.snapshot
    end, segments = (len(history.events), history.segments)
    if failed and history.at_error is not None:
        end, segments = history.at_error
    frames, live, trace = Frames(), {}, []
    for action, address, nbytes, traceback in history.events[:end]:
        if action == "alloc":
            live[address] = (nbytes, frames.of(traceback))
        place = "device_free" if action == "oom" else "addr"
        listed = frames.of(traceback)
        for name in ACTIONS.get(action, (action,)):
            trace.append({"action": name, place: address, "size": nbytes, "stream": 0, "frames": listed})
        if action == "free":
            live.pop(address, None)
    return {"segments": [segment_dict(segment, live, history.settings.expandable_segments) for segment in segments],
            "device_traces": [trace], "allocator_settings": settings_dict(history.settings),
            "external_annotations": []}


def segment_dict(segment, live: dict, expandable: bool) -> dict:
    blocks = []
    for address, size, is_free in segment.blocks:
        requested, frames = live.get(address, (size, [])) if not is_free else (0, [])
        blocks.append({"address": address, "size": size, "requested_size": requested,
                       "state": "inactive" if is_free else "active_allocated", "frames": frames})
    allocated = sum(size for _, size, is_free in segment.blocks if not is_free)
    return {"device": 0, "address": segment.address, "total_size": segment.size, "allocated_size": allocated,
            "active_size": allocated, "requested_size": sum(block["requested_size"] for block in blocks), "stream": 0,
            "segment_type": "small" if segment.is_small else "large", "segment_pool_id": (0, 0),
            "is_expandable": expandable, "frames": [], "blocks": blocks}


def settings_dict(settings) -> dict:
    steps = settings.roundup_power2_divisions
    steps = steps if isinstance(steps, tuple) else (steps,) * 16
    return {"PYTORCH_CUDA_ALLOC_CONF": str(settings),
            "max_split_size": -1 if settings.max_split_size is None else settings.max_split_size,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
            "roundup_power2_divisions": {str(2**place): number for place, number in enumerate(steps)}}


class Frames:
    """File, line and name of the frames of tracebacks, each list and each frame made once and shared."""

    def __init__(self):
        self.lists, self.frames = {}, {}

    def of(self, traceback: tuple) -> list[dict]:
        key = id(traceback)
        if key not in self.lists:
            found = [self.frame(*pair) for pair in traceback[1:]]
            backward = [BACKWARD] * traceback[0]
            self.lists[key] = backward + [frame for frame in found if frame is not None]
        return self.lists[key]

    def frame(self, code, instruction: int) -> dict | None:
        """None for a frame that is there only because the card is simulated."""
        key = (code, instruction)
        if key not in self.frames:
            name = code.co_filename
            if name.startswith(OURS) or any(part in name for part in SIMULATION):
                self.frames[key] = None
            else:
                line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
                self.frames[key] = {"filename": name, "line": line or code.co_firstlineno, "name": code.co_name}
        return self.frames[key]
