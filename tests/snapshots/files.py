"""Snapshots for tests: of small runs, from recorded traces, and as long as one likes."""

import pickle

from helpers.measuring.history import History
from helpers.measuring.snapshot_file import snapshot_of
from helpers.simulation.allocator.caching_allocator import AllocationFailed, CachingAllocator, SimulatedDriver
from helpers.simulation.allocator.settings import Settings
from helpers.snapshots.reading import read
from helpers.snapshots.snapshot import Snapshot


def long_recording(events: int, depth: int = 20) -> dict:
    """A snapshot with so many events of a training loop, as PyTorch writes it: each event has a list of frames of its
    own, and the lists share their dictionaries."""
    frames = [{"filename": f"/work/train_{number}.py", "line": number, "name": "forward"} for number in range(200)]
    trace, live, address, ring = [], [], 2**40, frames + frames

    def event(action, addr, size, place):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 10**15 + len(trace),
                "compile_context": "N/A", "user_metadata": "", "frames": ring[place:place + depth]}

    while len(trace) < events:
        for place in range(100):
            trace.append(event("alloc", address, 2**21 + 512 * place, place))
            live.append((address, 2**21 + 512 * place, place))
            address += 2**22
        for where, size, place in reversed(live):
            trace += [event("free_requested", where, size, place), event("free_completed", where, size, place)]
        live, address = [], 2**40
    return {"segments": [], "device_traces": [trace[:events]], "allocator_settings": {}, "external_annotations": []}


def write(path, data):
    """Pickle `data` at `path` as torch.cuda.memory._dump_snapshot does; returns the path."""
    with open(path, "wb") as file:
        pickle.dump(data, file)
    return path


def of_trace(trace: dict) -> dict:
    """A recorded allocator trace (see the README of the folder TRACES) as the snapshot that PyTorch would have written
    at its end."""
    starts, sizes = {}, {}  # by segment
    requested, where = {}, {}  # by block
    for segment, size, address in trace["segments"]:
        starts[segment], sizes[segment] = address, size
    for block, size, segment, offset in trace["live"]:
        requested[block], where[block] = size, starts[segment] + offset
    base, events = 2**40, []
    for event in trace["events"]:
        if event[0] == "segment_alloc":
            _, segment, size, address = event
            starts[segment], sizes[segment] = address, size
            found = [("segment_alloc", address, size)]
        elif event[0] == "segment_free":
            found = [("segment_free", starts[event[1]], sizes.pop(event[1]))]
        elif event[0] == "alloc":
            _, block, size, segment, offset = event
            requested[block], where[block] = size, starts[segment] + offset
            found = [("alloc", where[block], size)]
        else:
            address, size = where.pop(event[1]), requested[event[1]]
            found = [("free_requested", address, size), ("free_completed", address, size)]
        events += [{"action": action, "addr": base + address, "size": size, "stream": 0, "frames": []}
                   for action, address, size in found]
    live = sorted((address, -(-requested[block] // 512) * 512, requested[block]) for block, address in where.items())
    segments = []
    for segment, total in sizes.items():
        blocks, position = [], starts[segment]
        for address, size, asked in [*live, (2**62, 0, 0)]:
            if starts[segment] <= address < starts[segment] + total or address == 2**62:
                gap = min(address, starts[segment] + total) - position
                if gap:
                    blocks.append({"address": base + position, "size": gap, "requested_size": 0, "state": "inactive"})
                if address < 2**62:
                    blocks.append({"address": base + address, "size": size, "requested_size": asked, "frames": [],
                                   "state": "active_allocated"})
                position = address + size
        segments.append({"device": 0, "address": base + starts[segment], "total_size": total, "stream": 0,
                         "segment_type": "small" if total == 2**21 else "large", "blocks": blocks})
    return {"segments": segments, "device_traces": [events]}


def of_orders(orders, capacity: int, **settings) -> Snapshot:
    """What an allocator records that is given `orders`: a size to ask for, ("free", n) for what the n-th order gave,
    "empty". Stops at the first request that fails."""
    allocator = CachingAllocator(SimulatedDriver(capacity), settings=Settings(**settings))
    history, blocks = History(allocator, None), []
    history.start(lambda: "")
    failed = False
    try:
        for order in orders:
            blocks.append(None)
            if order == "empty":
                allocator.empty_cache()
            elif isinstance(order, tuple):
                allocator.free(blocks[order[1]])
            else:
                blocks[-1] = allocator.malloc(order)
    except AllocationFailed:
        failed = True
    history.stop()
    return Snapshot(read(snapshot_of(history, failed)))
