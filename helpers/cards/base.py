"""What every card can do: run a training function, say what it did with memory, and find the largest batch."""

import traceback

import torch

from helpers.measuring.recorder import Recorder
from helpers.measuring.run import Run
from helpers.units import check_whole_number


class Card:
    """What both cards share. A card has `device`, `name`, `capacity` (bytes), `is_simulated`.

    `run`, `max_batch_size`, `empty_cache`; `allocated`, `reserved` and `device_used` are bytes now.
    """

    def run(self, train, batch_size: int, expect_gradients: bool = True, record_history: bool = False) -> Run:
        """Call `train(device, batch_size)` on a clean card and say what it did with memory.

        An out-of-memory error ends the run, not the notebook: `run.fits` is False. Everything the run allocated is
        gone afterwards unless a name outside `train` still holds it (`run.left_behind`). record_history: keep what the
        allocator did, and for which lines, for `run.save_snapshot`. Raises TypeError or ValueError for a bad batch
        size, RuntimeError when trainable parameters exist and none got a gradient (`expect_gradients=False` allows a
        forward pass alone), and whatever else `train` raises.
        """
        check_whole_number("batch_size", batch_size)
        if not callable(train):
            raise TypeError(f"card.run needs a training function train(device, batch_size), got {train!r}.")
        run = self._measure(train, batch_size, record_history)
        if expect_gradients and run.fits and run.without_gradient and not run.has_gradients:
            raise RuntimeError(
                f"train returned without a backward pass: none of its {len(run.without_gradient)} trainable parameters "
                "got a gradient, so the run says nothing about training. Call loss.backward() and optimizer.step(), "
                "or pass expect_gradients=False to measure a forward pass.")
        return run

    def max_batch_size(self, train, limit: int = 4096) -> int:
        """The largest batch size that fits, of those up to `limit`; 0 when none does.

        What is reserved grows in nearly a straight line, so two batch sizes that fit say where to look; where the line
        misleads, bisection. Nearly: a batch can fit although one less does not, since other sizes leave other gaps in
        the cache. It ends when a batch size has been run that fits, and the next two have been run and do not.
        """
        check_whole_number("limit", limit)
        fitted, failed = {0: 0}, {limit + 1, limit + 2}  # batch size: bytes reserved; batch sizes
        while True:
            fits = max(fitted)
            fails = min(size for size in failed if size > fits)
            if {fits + 1, fits + 2} <= failed:
                return fits
            if fails == fits + 1:
                guess = fits + 2
            else:
                guess = min(self._extrapolate(fitted), 4 * fits) if fits else min(4, limit)
                guess = max(guess, fits + 1) if guess < fails else (fits + fails) // 2
            run = self.run(train, guess)
            if run.fits:
                fitted[guess] = run.peak_reserved
            else:
                failed.add(guess)

    def _extrapolate(self, fitted: dict[int, int]) -> int:
        """The batch size at which the line through the largest that fitted, and one well below, meets the capacity."""
        large = max(fitted)
        small = max(size for size in fitted if size <= large / 2)
        slope = (fitted[large] - fitted[small]) / (large - small)
        return large + int((self.capacity - fitted[large]) / slope) if slope > 0 else 4 * large


def call_and_forget(train, device, batch_size: int) -> str | None:
    """Call `train` and drop what it returns; the message of an out-of-memory error, if there was one.

    The traceback of an error holds the frames of `train`, and they hold its tensors: their names are cleared, so
    that the memory is free when this returns or raises.
    """
    try:
        train(device, batch_size)
    except torch.OutOfMemoryError as error:
        forget(error)
        return str(error)
    except BaseException as error:
        forget(error)
        raise
    return None


def forget(error: BaseException) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def finish(card, recorder: Recorder, batch_size: int, error: str | None, **measured) -> Run:
    """The `Run` of what `recorder` saw."""
    timeline = recorder.timeline()
    return Run(card_name=card.name, is_simulated=card.is_simulated, capacity=card.capacity, batch_size=batch_size,
               fits=error is None, error=error, timeline=timeline, live_at_peak=recorder.live_at(timeline.peak),
               request=recorder.request, flops=recorder.flops,
               estimated_seconds=recorder.roofline.seconds / max(recorder.roles.step, 1),
               without_gradient=recorder.roles.without_gradient,
               has_gradients=bool(recorder.roles.with_gradient), **measured)
