"""The CUDA card of this machine, held to the reference card's capacity, measured by PyTorch's own counters."""

import gc
import statistics
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from helpers.cards.base import Card, call_and_forget, finish
from helpers.cards.catalogue import CardSpec
from helpers.measuring.history import CudaHistory
from helpers.measuring.recorder import Recorder
from helpers.measuring.roofline import Roofline
from helpers.measuring.run import Run
from helpers.torch_private import clear_cublas_workspaces, memory_snapshot, record_memory_history
from helpers.units import GiB

LONGEST_HISTORY = 1_000_000  # actions of the allocator that PyTorch keeps, then it forgets the oldest


class CudaCard(Card):
    """The first CUDA GPU, capped so that batch 4 fails on an 80 GB card as it does on a 24 GB one; says so in print.

    capacity: bytes that PyTorch may reserve; default the capacity of `spec`, or what this GPU has free if that is less.
    Peaks are `torch.cuda.max_memory_allocated` and `max_memory_reserved` of a call of `train` that nobody watches:
    under a dispatch mode autograd accumulates gradients out of place. A second, recorded call gives roles and timeline.
    `close()` lifts the cap.
    """

    is_simulated = False

    def __init__(self, spec: CardSpec, capacity: int | None = None):
        self.spec, self.name = spec, torch.cuda.get_device_name()
        self.device = torch.device("cuda", torch.cuda.current_device())
        free, self.total = torch.cuda.mem_get_info()
        usable = free + torch.cuda.memory_reserved()
        wanted = spec.capacity if capacity is None else capacity
        self.capacity = min(wanted, usable)
        torch.cuda.set_per_process_memory_fraction(self.capacity / self.total)
        if self.capacity == wanted:
            held = f"held to {self.capacity / GiB:.2f} GiB for PyTorch, as on an {spec.name}"
        else:
            held = f"with {self.capacity / GiB:.2f} GiB free for PyTorch, less than on an {spec.name}"
        print(f"{self.name}, {self.total / GiB:.2f} GiB, {held}.")

    @property
    def allocated(self) -> int:
        return torch.cuda.memory_allocated()

    @property
    def reserved(self) -> int:
        return torch.cuda.memory_reserved()

    @property
    def device_used(self) -> int:
        """Bytes in use on the whole card, by every process, as the driver says."""
        free, total = torch.cuda.mem_get_info()
        return total - free

    def empty_cache(self) -> None:
        """Give cached memory that no tensor uses back to the driver."""
        torch.cuda.empty_cache()

    def close(self) -> None:
        """Lift the cap: a forgotten one explains an out-of-memory error on a card that is nearly empty."""
        torch.cuda.set_per_process_memory_fraction(1.0)

    def _clean(self) -> int:
        gc.collect()
        torch.cuda.synchronize()
        clear_cublas_workspaces()  # kept by PyTorch for the process: a run on a clean card has none
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _measure(self, train, batch_size: int, record_history: bool = False) -> Run:
        # The cap is the process's, not the card's: another card opened since has set its own.
        torch.cuda.set_per_process_memory_fraction(self.capacity / self.total)
        before, stats = self._clean(), torch.cuda.memory_stats()
        seconds = StepTimer()
        with seconds:
            error = call_and_forget(train, self.device, batch_size)
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        after = torch.cuda.memory_stats()
        counts = {name: after.get(key, 0) - stats.get(key, 0) for name, key in
                  (("driver_calls", "num_device_alloc"), ("retries", "num_alloc_retries"))}
        self._clean()
        recorder = Recorder("cuda", roofline=Roofline(self.spec, "cuda"))
        if record_history:
            record_memory_history(max_entries=LONGEST_HISTORY)
        try:
            with recorder:
                recorded_error = call_and_forget(train, self.device, batch_size)
            history = CudaHistory(memory_snapshot()) if record_history else None
        finally:
            if record_history:
                record_memory_history(enabled=None)
        recorder.roles.forget_hooks()
        left = self._clean() - before
        return finish(self, recorder, batch_size, error or recorded_error, peak_allocated=allocated,
                      peak_reserved=reserved, seconds=seconds.median, held_before=before, left_behind=max(left, 0),
                      history=history, **counts)


class StepTimer:
    """Seconds from the end of one optimizer step to the end of the next, the card's queue drained at both ends."""

    def __enter__(self):
        self.ends = []
        self.hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def _stepped(self, optimizer, args, kwargs) -> None:
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def __exit__(self, *error) -> None:
        self.hook.remove()

    @property
    def median(self) -> float | None:
        """None when there were fewer than two optimizer steps."""
        gaps = [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]
        return statistics.median(gaps) if gaps else None


