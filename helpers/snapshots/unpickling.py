"""Reads a snapshot's pickle without running it.

A pickle is a program: it may name any function of any module and have it called. A snapshot needs none, only
dictionaries, lists, tuples, numbers and text, so anything that names more is refused before it is imported.
"""

import io
import os
import pickle
import sys
import time

LARGEST = 2 * 2**30  # bytes of a file; what it holds takes several times as much memory
PATIENCE = 2.0  # seconds before a progress bar comes up


class SnapshotError(ValueError):
    """A file that cannot be read as a memory snapshot; the message is one sentence."""


class PlainUnpickler(pickle.Unpickler):
    """Plain containers, numbers and text only."""

    def find_class(self, module, name):
        raise SnapshotError(f"This file asks to run {module}.{name}, which no memory snapshot does. It was not run; do "
                            "not open the file with pickle.")

    def persistent_load(self, pid):
        raise SnapshotError("This file refers to objects outside of it, which no memory snapshot does.")


class Progress:
    """A bar on the terminal, or under the cell, once something takes longer than two seconds."""

    def __init__(self, what: str, total: int):
        self.what, self.total, self.start, self.shown = what, max(total, 1), time.monotonic(), -1

    def at(self, done: int) -> None:
        tenth = 10 * done // self.total
        if tenth > self.shown and time.monotonic() - self.start > PATIENCE:
            self.shown = tenth
            print(f"\r{self.what}: {'#' * tenth}{'.' * (10 - tenth)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.shown >= 0:
            print("\r" + " " * (len(self.what) + 12), end="\r", file=sys.stderr, flush=True)


class Watched(io.RawIOBase):
    """A file that tells how far it has been read."""

    def __init__(self, file, progress: Progress):
        self.file, self.progress = file, progress

    def readable(self):
        return True

    def readinto(self, buffer):
        read = self.file.readinto(buffer)
        self.progress.at(self.file.tell())
        return read


def load(path, largest: int = LARGEST):
    """What is pickled in the file at `path`, if it is plain; SnapshotError, one sentence, otherwise."""
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be opened: {error.strerror or error}.") from None
    if os.path.isdir(path):
        raise SnapshotError(f"{path} is a folder; name the file in it.")
    if not size:
        raise SnapshotError(f"{path} is empty; perhaps the job was stopped while it wrote.")
    if size > largest:
        raise SnapshotError(f"{path} has {size / 2**30:.1f} GiB, more than the {largest / 2**30:.1f} GiB read here. "
                            "Record fewer events: torch.cuda.memory._record_memory_history(max_entries=100_000).")
    progress = Progress("reading", size)
    try:
        with open(path, "rb", buffering=0) as file:
            return PlainUnpickler(io.BufferedReader(Watched(file, progress), 2**20)).load()
    except SnapshotError:
        raise
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise SnapshotError(f"{path} asks for more memory than there is: it is damaged, or too large for this "
                            "machine.") from None
    except EOFError:
        raise SnapshotError(f"{path} ends too early: it is truncated, or no pickle.") from None
    except Exception as error:  # whatever the unpickler trips over in bytes that are no pickle
        if "truncated" in str(error):
            raise SnapshotError(f"{path} ends too early: it is truncated, or no pickle.") from None
        raise SnapshotError(f"{path} is no memory snapshot: it cannot be read as a pickle "
                            f"({type(error).__name__}).") from None
    finally:
        progress.close()
