"""Which trouble a snapshot shows: too large a peak, a leak, fragmentation, somebody else's memory, or a limit."""

import dataclasses

from helpers.units import GiB, format_bytes

PEAK, LEAK, FRAGMENTATION, SOMEBODY = "too large a peak", "a leak", "fragmentation", "somebody else's memory"
LIMIT, NONE = "a limit", "no failure"
CONTEXT = GiB  # what the CUDA context and a screen may take; more than that is another program
CURES = {
    PEAK: "Lower what the largest lines hold: a smaller batch, checkpointing, mixed precision, fused attention.",
    LEAK: "Find who keeps them: a list, a cache, a loss with its graph. Keep numbers (.item()) or .detach().cpu().",
    FRAGMENTATION: "Set PYTORCH_ALLOC_CONF=expandable_segments:True, or run the longest batch first.",
    SOMEBODY: "Look who it is with nvidia-smi: an old kernel, another job. Your own code need not change.",
    LIMIT: "Look for set_per_process_memory_fraction in your code, or restart the process.",
    NONE: "Look at the peak: what holds most there?",
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """name: one of the constants above; why: what in the file says so; cure: what helps."""

    name: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why} {self.cure}"


def free_pieces(snapshot) -> list[int]:
    """Free pieces that a request of the failed one's size could use, were they large enough; smallest first."""
    return sorted(size for segment in snapshot.segments if not segment.is_small
                  for _, size, is_free in segment.blocks if is_free)


def diagnose(snapshot) -> Reading:
    """The first that fits, in this order: a limit, a leak, fragmentation, somebody else, too large a peak.

    A leak and fragmentation come before somebody else: they fail on an empty card too, a little later.
    """
    failure, leaks = snapshot.failure, snapshot.leaks
    in_use, reserved = int(snapshot.allocated[snapshot.when]), int(snapshot.reserved[snapshot.when])
    leaked = sum(leak.bytes for leak in leaks)
    leaking = leaked > in_use / 20
    if failure is None:
        if leaking:
            return reading(LEAK, f"no request failed, but {leaks[0]}.")
        return reading(NONE, f"no request failed; the peak is {format_bytes(in_use)} in use.")
    pieces = free_pieces(snapshot)
    if failure.device_free >= failure.segment:
        return reading(LIMIT, f"{format_bytes(failure.device_free)} of the card were free when "
                              f"{format_bytes(failure.segment)} were refused.")
    others, asked = snapshot.others, format_bytes(failure.bytes)
    if leaking:
        return reading(LEAK, f"{leaks[0]}; {format_bytes(leaked)} of {format_bytes(in_use)} in use are left over from "
                             "steps that are over.")
    if sum(pieces) >= failure.bytes and sum(pieces) > reserved / 25 and pieces[-1] < failure.bytes:
        return reading(FRAGMENTATION, f"{format_bytes(sum(pieces))} are reserved and free, in {len(pieces)} pieces, "
                                      f"the largest {format_bytes(pieces[-1])}; {asked} were asked for.")
    if others is not None and others > max(snapshot.total / 10, CONTEXT) and others >= failure.segment:
        return reading(SOMEBODY, f"PyTorch had {format_bytes(reserved)}, {format_bytes(failure.device_free)} were left"
                                 f", {format_bytes(others)} of {format_bytes(snapshot.total)} belong to others.")
    unknown = "" if others is not None else " (Whether others held memory the file does not say: give total=.)"
    return reading(PEAK, f"{format_bytes(in_use)} of {format_bytes(reserved)} reserved are in use, and "
                         f"{asked} more were asked for.{unknown}")


def reading(name: str, why: str) -> Reading:
    return Reading(name, why, CURES[name])
