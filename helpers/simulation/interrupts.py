"""Lets an interrupt (the stop button of a notebook) wait for a place where it does no harm.

Python raises KeyboardInterrupt wherever it happens to be. On a device written in Python that can be a function that C++
called and that may not fail (the process would abort), or a destructor (Python drops the exception, and the memory that
was to be freed stays booked). So it waits: for the training function's own code, a module, or the end of the run.
"""

import pathlib
import signal
import threading

import torch

TORCH = str(pathlib.Path(torch.__file__).parent)
MODULES = str(pathlib.Path(torch.nn.modules.__file__).parent)
HELPERS = str(pathlib.Path(__file__).parent.parent)
CALLER = str(pathlib.Path(HELPERS) / "cards" / "base.py")


class Interrupts:
    """`with Interrupts() as interrupts:` holds interrupts back; `interrupts.check()` raises one that is waiting.

    Does nothing outside the main thread, which alone gets interrupts, and where no Python handler is set.
    """

    def __enter__(self):
        self.waiting, self.before = None, signal.getsignal(signal.SIGINT)
        self.active = threading.current_thread() is threading.main_thread() and callable(self.before)
        if self.active:
            signal.signal(signal.SIGINT, self._arrived)
        return self

    def _arrived(self, number, frame) -> None:
        self.waiting = number, frame
        if self._harmless(frame):
            self.check()

    def _harmless(self, frame) -> bool:
        """Whether only the reader's own code and modules are running, down to the card that called them."""
        while frame is not None and frame.f_code.co_filename != CALLER:
            file = frame.f_code.co_filename
            machinery = file.startswith(TORCH) and not file.startswith(MODULES)
            if machinery or (file.startswith(HELPERS) and not file.endswith("model.py")) or "weakref" in file:
                return False
            frame = frame.f_back
        return True

    def check(self) -> None:
        if self.waiting is not None:
            number, frame = self.waiting
            self.waiting = None
            self.before(number, frame)

    def __exit__(self, kind, error, trace) -> None:
        if self.active:
            signal.signal(signal.SIGINT, self.before)
        if kind is None:
            self.check()
