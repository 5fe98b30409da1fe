"""Small made-up runs, to test what is drawn and said about them."""

from helpers.measuring.run import ROLES, Run, TensorRecord, Timeline
from helpers.units import GiB, MiB


def made_up_run(batch_size=2, fits=True, capacity=8 * GiB, steps=2, activations=2.0, events=24, **changes) -> Run:
    """A run with 1 GiB of parameters, 0.5 of gradients, 2 of optimizer state and `activations` GiB a document.

    events: entries of each phase in the timeline. A run that does not fit stops in the first forward, 256 MiB below
    what it asked for. changes: fields of `Run`.
    """
    peak = {"parameters": GiB, "gradients": GiB // 2, "optimizer state": 2 * GiB, "batch": 4 * MiB,
            "temporaries": GiB // 4, "activations": int(activations * batch_size * GiB)}
    if not fits:
        peak = {"parameters": GiB, "activations": capacity - GiB - 128 * MiB, "batch": 4 * MiB}
    rows, phases = [], []

    def ramp(phase, step, start, end):
        for i in range(events):
            share = (i + 1) / events
            rows.append({role: int((1 - share) * start.get(role, 0) + share * end.get(role, 0)) for role in ROLES})
            phases.append((phase, step))

    held = {"parameters": GiB}
    ramp("setup", 0, {}, held)
    if not fits:
        ramp("forward", 0, held, peak)
    for step in range(steps if fits else 0):
        full = {**held, **{role: peak[role] for role in ("activations", "batch", "temporaries")}}
        ramp("forward", step, held, full)
        if step:
            rows[-1] = {role: peak[role] for role in ROLES}
        after = {**held, "gradients": GiB // 2}
        ramp("backward", step, full, after)
        held = {"parameters": GiB, "optimizer state": 2 * GiB}
        ramp("optimizer step", step, after, held)
    by_role = {role: [row[role] for row in rows] for role in ROLES}
    total = [sum(row.values()) for row in rows]
    line = Timeline([phase for phase, _ in phases], [step for _, step in phases], by_role,
                    [size + 16 * MiB for size in total], max(range(len(total)), key=total.__getitem__))
    live = [TensorRecord(f"blocks.{index}", "aten.empty", (size // 4,), "float32", size, role, "forward")
            for index, (role, size) in enumerate(peak.items())]
    live.sort(key=lambda record: -record.bytes)
    request = TensorRecord("blocks.8", "aten.mm", (4, 4), "float32", 256 * MiB, "activations", "forward")
    fields = {
        "card_name": "test card", "is_simulated": True, "capacity": capacity, "batch_size": batch_size, "fits": fits,
        "error": None if fits else "out of memory", "peak_allocated": sum(peak.values()),
        "peak_reserved": sum(peak.values()) + 16 * MiB, "timeline": line, "live_at_peak": live,
        "request": None if fits else request, "flops": 10 ** 9 * batch_size, "seconds": None, "estimated_seconds": 0.1,
        "held_before": 0, "left_behind": 0, "without_gradient": (), "has_gradients": True, "driver_calls": 1,
        "retries": 0}
    return Run(**{**fields, **changes})


class MadeUpCard:
    """A card whose runs are made up by `answer(batch_size)`; it calls the training function, so that it can raise."""

    device, capacity = "test", 8 * GiB

    def __init__(self, answer):
        self.answer = answer

    def run(self, train, batch_size, expect_gradients=True):
        train(self.device, batch_size)
        return self.answer(batch_size)
