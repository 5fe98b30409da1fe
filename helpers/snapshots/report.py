"""A snapshot in words: what `python -m helpers.snapshot FILE` prints."""

from helpers.snapshots.diagnosis import CONTEXT, SOMEBODY
from helpers.units import GiB, format_bytes


def summary(snapshot) -> str:
    """One or two lines: how large, and which trouble."""
    at = "at the error" if snapshot.failure else "at the peak"
    in_use, reserved = int(snapshot.allocated[snapshot.when]), int(snapshot.reserved[snapshot.when])
    return (f"{len(snapshot)} events; {at} {in_use / GiB:.2f} GiB in use, {reserved / GiB:.2f} reserved\n"
            f"{snapshot.reading}")


def report(snapshot, lines: int = 8, **what_if) -> str:
    """Everything: sizes, the request that failed, who held what, leaks, the reading, and what if.

    what_if: arguments of `Snapshot.replay`; with none, where something failed: the card without the others, where they
    are the trouble, else expandable segments.
    """
    recording, failure = snapshot.recording, snapshot.failure
    text = [f"{snapshot.name}: {len(snapshot)} events"]
    if recording.skipped:
        text.append(f"{recording.skipped} entries could not be read and are left out.")
    if not len(snapshot):
        text.append("No history: only what was in use when the file was written. "
                    "torch.cuda.memory._record_memory_history() before the model is made records one.")
    text.append(f"peak          {format_bytes(int(snapshot.allocated.max())):>11} in use, "
                f"{format_bytes(int(snapshot.reserved.max()))} reserved")
    text.append(f"settings      {str(snapshot.settings) or 'default'}")
    if failure:
        text.append(f"failed        {format_bytes(failure.bytes):>11} asked for by {failure.place.line}; "
                    f"the driver had {format_bytes(failure.device_free)} left")
        text.append(f"then          {format_bytes(int(snapshot.allocated[snapshot.when])):>11} in use, "
                    f"{format_bytes(snapshot.cached)} cached")
    text += ["", f"In use {'at the error' if failure else 'at the peak'}, by line:"]
    text += [f"  {culprit}" for culprit in snapshot.holders[:lines]]
    if len(snapshot.holders) > lines:
        rest = sum(culprit.bytes for culprit in snapshot.holders[lines:])
        text.append(f"  {format_bytes(rest):>11} by {len(snapshot.holders) - lines} other lines")
    if snapshot.leaks:
        text += ["", f"Stays from step to step ({len(snapshot.starts) + 1} steps seen):"]
        text += [f"  {leak}" for leak in snapshot.leaks[:lines]]
    text += ["", str(snapshot.reading)]
    if len(snapshot) and (failure or what_if):
        what_if = what_if or ({"capacity": snapshot.total - CONTEXT} if snapshot.reading.name == SOMEBODY else
                              {"expandable_segments": True})
        text += ["", f"Replayed as recorded: {snapshot.agreement}", f"What if: {snapshot.replay(**what_if)}"]
    return "\n".join(text)
