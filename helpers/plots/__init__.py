"""Pictures of runs, each with its message as the title.

`one_run` draws what one run held, `comparisons` several side by side, `sweeps` many batch sizes, `segments` what the
allocator holds, `recordings` a memory snapshot, all in one `style`. Each function takes `Run` objects or plain numbers,
prints nothing and returns a Matplotlib figure that carries a sentence for people who do not see it
(`helpers.lessons.display.describe`);
`show(plots.timeline(run))` displays it. Nothing goes through pyplot, so no state is left behind.
"""

from helpers.lessons.display import describe, show, to_png
from helpers.plots.comparisons import combinations, ladder, trade
from helpers.plots.one_run import breakdown, timeline
from helpers.plots.recordings import recording
from helpers.plots.segments import segments
from helpers.plots.sweeps import batch_sweep, curves

__all__ = ["batch_sweep", "breakdown", "combinations", "curves", "describe", "ladder", "recording", "segments", "show",
           "timeline", "to_png", "trade"]
