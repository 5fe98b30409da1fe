"""Runs a reader's training function on the card and says what is wrong with it, in the order one would look."""

import linecache
import traceback

from helpers.measuring.run import Run
from helpers.units import GiB, format_bytes


def check_training(card, train, batch_size: int, fits: bool = True, peak_below: int | None = None,
                   largest_batch_at_least: int | None = None, flops_at_most: float | None = None,
                   explain: str = "") -> None:
    """Run `train(device, batch_size)` on the card and print whether it reaches the goals, else what stops it.

    fits: whether batch `batch_size` should fit. peak_below: bytes. largest_batch_at_least: a batch size that must fit
    as well. flops_at_most: floating-point operations of the whole run. explain: one sentence for success. Returns
    nothing and raises nothing for the reader's code; ValueError for a `peak_below` that cannot be bytes.
    """
    if peak_below is not None and peak_below < 2**20:
        raise ValueError(f"peak_below is in bytes, got {peak_below}. Write {peak_below} * GiB.")
    if train is ... or train is None:
        print("Write a function train(device, batch_size) in place of the ..., then run this cell.")
        return
    if not callable(train):
        print(f"This is {type(train).__name__}, not a function. Pass the function itself: train, not train(...).")
        return
    run = attempt(card, train, batch_size)
    if run is None:
        return
    problem = mistake(run) or missed(run, fits, peak_below, flops_at_most)
    if problem:
        print(problem)
        return
    if largest_batch_at_least is not None:
        larger = attempt(card, train, largest_batch_at_least)
        if larger is None:
            return
        problem = missed(larger, True, None, None)
        if not problem and largest_batch_at_least != batch_size and larger.flops == run.flops:
            problem = (f"Not yet: batch {largest_batch_at_least} does the same work as batch {batch_size}. "
                       "Your function does not use batch_size.")
        if problem:
            print(problem)
            return
    print(f"Right: {success(run, largest_batch_at_least)} {explain}".strip())


def attempt(card, train, batch_size: int) -> Run | None:
    """The run, or None after printing what the reader's code raised."""
    try:
        return card.run(train, batch_size, expect_gradients=False)
    except Exception as error:
        print(f"Not yet: {type(error).__name__}: {first_line(error)}{where(error, train)}")
        traceback.clear_frames(error.__traceback__)  # they hold the run's tensors
        return None


def first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0] or "(no message)"
    if "same device" in line:
        line += " Put the model, the batch and everything you make on `device`."
    return line


def where(error: Exception, train) -> str:
    """The reader's line that raised: the last one of the traceback in the file, or cell, that `train` is from."""
    code = getattr(train, "__code__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if code and frame.filename == code.co_filename]
    line = linecache.getline(frames[-1].filename, frames[-1].lineno).strip() if frames else ""
    return f"\nIt happened in this line: {line}" if line else ""


def mistake(run: Run) -> str:
    """What is wrong with a run whatever its goal; a run that says nothing about training cannot reach one."""
    line = run.timeline
    if not len(line):
        return "Not yet: your function put nothing on the card. Build the model and the batch on `device`."
    if not run.fits:
        return ""
    if not run.has_gradients:
        return ("Not yet: no parameter got a gradient. Without loss.backward() and optimizer.step() "
                "this measures a forward pass, not training.")
    if run.without_gradient:
        names = ", ".join(run.without_gradient[:3])
        return (f"Not yet: {len(run.without_gradient)} trainable parameters got no gradient ({names}). "
                "A part of the model does not learn; its saving is not real.")
    steps = len({step for step, phase in zip(line.step, line.phase, strict=True) if phase == "optimizer step"})
    steps = max(steps, max(line.step))
    if steps == 0:
        return ("Not yet: there is no optimizer step. Adam's state, 8 bytes a parameter, does not exist before the "
                "first one.")
    if steps == 1:
        return ("Not yet: there is one optimizer step. Adam's state exists only after the first, so the true peak "
                "comes in the second: take two.")
    if run.left_behind:
        return (f"Not yet: {format_bytes(run.left_behind)} are still held after the run. A name outside the function, "
                "a list or a global, keeps tensors alive.")
    return ""


def missed(run: Run, fits: bool, peak_below: int | None, flops_at_most: float | None) -> str:
    """What keeps the run from its goal, else an empty text."""
    if run.fits and not fits:
        return (f"Not yet: batch {run.batch_size} fits, with a peak of {run.peak_allocated / GiB:.2f} GiB. "
                "It was to run out of memory.")
    if not run.fits and fits:
        asked = f" It asked for {format_bytes(run.request.bytes)} more." if run.request and run.request.bytes else ""
        largest = "\n".join(f"  {record}" for record in run.culprits[:3])
        held = sum(run.roles_at_peak.values())
        return (f"Not yet: batch {run.batch_size} runs out of memory with {held / GiB:.2f} GiB allocated."
                f"{asked} {dominant(run)}\nThe largest tensors:\n{largest}")
    if peak_below is not None and run.peak_allocated >= peak_below:
        return (f"Not yet: the peak is {run.peak_allocated / GiB:.2f} GiB and was to be below {peak_below / GiB:.2f}. "
                f"{dominant(run)}")
    if flops_at_most is not None and run.flops > flops_at_most:
        return f"Not yet: it computes {run.flops / flops_at_most - 1:.0%} more than is allowed."
    return ""


def dominant(run: Run) -> str:
    sizes = run.roles_at_peak
    role = max(sizes, key=sizes.get)
    part = "Most of it" if sizes[role] > sum(sizes.values()) / 2 else "The largest part"
    return f"{part}, {sizes[role] / GiB:.2f} GiB, is {role}."


def success(run: Run, larger: int | None) -> str:
    if not run.fits:
        return f"batch {run.batch_size} runs out of memory, as it should."
    more = f", and batch {larger} fits as well" if larger is not None and larger != run.batch_size else ""
    fits = "runs out of memory, your function catches that and gets through" if run.request else "fits"
    return f"batch {run.batch_size} {fits}, peak {run.peak_allocated / GiB:.2f} GiB{more}."
