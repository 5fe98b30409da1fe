"""What the allocator did during a run, action by action and with the Python frames that asked: for a memory snapshot.

Recorded only where a run asks for it. While it runs a frame is kept as PyTorch keeps it, as its code object and the
instruction in it; file, line and name are looked up when the snapshot is written (helpers/measuring/snapshot_file.py).
"""

import sys


class History:
    """The actions of a simulated card's allocator, from `start` to `stop`.

    events: (action, address, bytes, traceback), the traceback innermost first as (code, instruction) pairs, after a
    first item that says whether autograd asked in backward. Actions and bytes are those of a snapshot: a request's own
    bytes for "alloc" and "free", the rounded ones for "oom", whose address is what the driver still had. segments: what
    the allocator held at the end; at_error: (number of events, the same) when the last request failed. phase: called
    for the recorder's phase. outermost: code object of the frame to end a traceback at, which is not kept.
    """

    def __init__(self, allocator, outermost):
        self.allocator, self.outermost = allocator, outermost
        self.settings, self.phase = allocator.settings, lambda: ""
        self.events, self.segments, self.at_error = [], [], None
        self.live = {}  # address -> (bytes requested, traceback), of what is in use

    def start(self, phase) -> None:
        self.phase, self.allocator.tell = phase, self.tell

    def stop(self) -> None:
        self.phase, self.allocator.tell = lambda: "", None
        self.segments = self.allocator.segments()

    def tell(self, action: str, address: int, nbytes: int) -> None:
        """One action of the allocator."""
        if action == "free":
            nbytes, traceback = self.live.pop(address, (nbytes, (False,)))
        else:
            traceback = self.traceback()
        if action == "alloc":
            self.live[address] = (nbytes, traceback)
        elif action == "oom":
            address = self.allocator.driver.capacity - self.allocator.reserved
            self.at_error = (len(self.events) + 1, self.allocator.segments())
        self.events.append((action, address, nbytes, traceback))

    def traceback(self) -> tuple:
        frame, found = sys._getframe(2), [self.phase() == "backward"]
        while frame is not None and frame.f_code is not self.outermost:
            found.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return tuple(found)


class CudaHistory:
    """The same from a CUDA card, as PyTorch's own recorder gives it. snapshot: `torch.cuda.memory._snapshot()`."""

    def __init__(self, snapshot: dict):
        self.snapshot = snapshot
