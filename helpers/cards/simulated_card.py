"""A CUDA card that needs no GPU: PyTorch's own code on tensors without data, and a model of the caching allocator."""

import contextlib
import gc

import torch

from helpers.cards.base import Card, call_and_forget, finish
from helpers.cards.catalogue import CardSpec
from helpers.measuring.history import History
from helpers.measuring.recorder import Recorder
from helpers.measuring.roofline import Roofline
from helpers.measuring.run import Run, TensorRecord
from helpers.simulation.allocator.caching_allocator import CachingAllocator, SimulatedDriver
from helpers.simulation.allocator.simpler_allocators import WithoutCaching, WithoutRounding
from helpers.simulation.device.backend import register
from helpers.simulation.interrupts import Interrupts
from helpers.simulation.session import PARTS, simulation
from helpers.units import format_bytes

# What `leave_out` may name: parts of this card, and parts of the device.
ALLOCATORS = {"rounding": WithoutRounding, "caching": WithoutCaching}
KNOWN_PARTS = {"workspaces", "in-place writes", *ALLOCATORS, *PARTS}


@contextlib.contextmanager
def only_new_garbage():
    """Within it Python's garbage collector leaves out what was there before. A process that has loaded much would spend
    as long on looking at it, again and again, as a run takes."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class SimulatedCard(Card):
    """`CardSpec` as a card: capacity and kernels of that card, sizes that CUDA would allocate, no data.

    leave_out: parts of the simulation to switch off, to see what each is worth: "workspaces" (cuBLAS takes none),
    "in-place writes" (see recorder.py), "rounding", "caching" (see simpler_allocators.py), and what `simulation` knows
    ("autocast lists", "attention kernels", "foreach", "dropout masks"). Raises ValueError for any other name.
    """

    is_simulated = True

    def __init__(self, spec: CardSpec, capacity: int | None = None, expandable_segments: bool = False, leave_out=()):
        self.spec, self.name, self.leave_out = spec, f"simulated {spec.name}", frozenset(leave_out)
        self.capacity = spec.capacity if capacity is None else capacity
        if self.leave_out - KNOWN_PARTS:
            raise ValueError(f"Unknown part to leave out: {', '.join(sorted(self.leave_out - KNOWN_PARTS))}. "
                             f"Known parts: {', '.join(sorted(KNOWN_PARTS))}.")
        simpler = tuple(ALLOCATORS[part] for part in sorted(self.leave_out & ALLOCATORS.keys()))
        if simpler and expandable_segments:
            raise ValueError('"rounding" and "caching" can be left out without expandable_segments only.')
        allocator = type("Allocator", (*simpler, CachingAllocator), {})
        self.allocator = allocator(SimulatedDriver(self.capacity), expandable_segments)
        self.workspaces = []

    @property
    def device(self) -> torch.device:
        register()  # before the first run, too
        return torch.device("sim")

    @property
    def total(self) -> int:
        """Bytes of the whole card, as the driver reports them."""
        return max(self.spec.total, self.capacity)

    @property
    def allocated(self) -> int:
        return self.allocator.allocated

    @property
    def reserved(self) -> int:
        return self.allocator.reserved

    @property
    def device_used(self) -> int:
        """Bytes in use on the whole card, as nvidia-smi would show them: PyTorch's segments and the CUDA context."""
        return self.spec.context + self.allocator.reserved

    def empty_cache(self) -> None:
        """Give cached memory that no tensor uses back to the driver, as `torch.cuda.empty_cache()` does."""
        self.allocator.empty_cache()

    def _clean(self) -> int:
        """Bytes still held after everything that can go is gone."""
        for block in self.workspaces:
            self.allocator.free(block)
        self.workspaces = []
        if self.allocator.allocated:
            gc.collect()
        self.allocator.empty_cache()
        self.allocator.reset_peaks()
        return self.allocator.allocated

    def _measure(self, train, batch_size: int, record_history: bool = False) -> Run:
        before = self._clean()
        calls, retries = self.allocator.driver_calls, self.allocator.retries
        history = History(self.allocator, call_and_forget.__code__) if record_history else None
        recorder = Recorder("sim", self.allocator, 0 if "workspaces" in self.leave_out else self.spec.workspace,
                            "in-place writes" not in self.leave_out, self._out_of_memory,
                            Roofline(self.spec, "sim"), history)
        try:
            with (Interrupts() as interrupts, only_new_garbage(),
                  simulation(self.spec.compute_capability, self.leave_out & PARTS), recorder):
                recorder.roles.at_each_module = interrupts.check
                error = call_and_forget(train, self.device, batch_size)
        finally:
            self.workspaces += [birth.block for birth in recorder.workspaces.values() if birth.block is not None]
        held = sum(block.size for block in self.workspaces)
        if self.allocator.allocated - held > before:
            recorder.roles.forget_hooks()
            gc.collect()
        return finish(self, recorder, batch_size, error, peak_allocated=self.allocator.peak_allocated,
                      peak_reserved=self.allocator.peak_reserved, seconds=None, held_before=before,
                      left_behind=self.allocator.allocated - held - before,
                      driver_calls=self.allocator.driver_calls - calls, retries=self.allocator.retries - retries,
                      history=history)

    def _out_of_memory(self, error, request: TensorRecord) -> torch.OutOfMemoryError:
        """PyTorch's own wording (c10/cuda/CUDACachingAllocator.cpp), and which module asked."""
        reserved, allocated = self.allocator.reserved, self.allocator.allocated
        used = max(self.spec.total - self.capacity, 0) + reserved
        where = f"`{request.module}`" if request.module else f"the {request.phase}"
        total = self.total
        return torch.OutOfMemoryError(
            f"CUDA out of memory (simulated). Tried to allocate {format_bytes(error.segment)}. "
            f"GPU 0 ({self.name}) has a total capacity of {format_bytes(total)} "
            f"of which {format_bytes(total - used)} is free. "
            f"Including non-PyTorch memory, this process has {format_bytes(used)} memory in use. "
            f"Of the allocated memory {format_bytes(allocated)} is allocated by PyTorch, "
            f"and {format_bytes(reserved - allocated)} is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation. "
            f"Asked for by {where}: {request.operator} {list(request.shape)} {request.dtype}.")
