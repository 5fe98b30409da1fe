"""How fast the simulated card is: two AdamW steps of the reference model, beside MemTracker on the same steps.

    python tests/measuring/benchmark.py

MemTracker, PyTorch's own, follows the steps on FakeTensors of the CPU. Both are timed in this process, in turn; printed
are the best of each, their ratio, and the process's peak memory on the host.
"""

import pathlib
import resource
import sys
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from helpers import open_card
from helpers.data import make_batch
from helpers.model import FusionConfig, FusionTransformer


def train(device, batch_size, tracker=None):
    """Two optimizer steps; a `tracker` wants to know the model and the optimizer."""
    with device:
        model = FusionTransformer(FusionConfig())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    if tracker is not None:
        tracker.track_external(model, optimizer)
    for _ in range(2):
        loss, _ = model(**make_batch(FusionConfig(), batch_size, device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if tracker is not None:
            tracker.reset_mod_stats()  # it follows one iteration at a time


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def follow_with_mem_tracker(batch_size: int) -> None:
    tracker = MemTracker()
    with FakeTensorMode(), tracker:
        train(torch.device("cpu"), batch_size, tracker)


def measure(repeats: int = 3) -> dict[str, float]:
    """Best seconds of each at batch 4, of the card at batch 64, and peak host memory in MiB."""
    card = open_card("RTX 3090", kind="simulated", capacity=1 << 40)
    times = {"card, batch 4": [], "card, batch 64": [], "MemTracker, batch 4": []}
    for _ in range(repeats):
        times["card, batch 4"].append(seconds(lambda: card.run(train, 4)))
        times["card, batch 64"].append(seconds(lambda: card.run(train, 64)))
        times["MemTracker, batch 4"].append(seconds(lambda: follow_with_mem_tracker(4)))
    return {name: min(values) for name, values in times.items()}


if __name__ == "__main__":
    best = measure()
    for name, value in best.items():
        print(f"{name:20} {value:6.2f} s")
    print(f"{'MemTracker / card':20} {best['MemTracker, batch 4'] / best['card, batch 4']:6.2f} times")
    print(f"{'host memory, peak':20} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MiB")
