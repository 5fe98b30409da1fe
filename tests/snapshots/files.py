"""Snapshots for tests: of small runs, from recorded traces, and as long as one likes."""

import pickle


def long_recording(events: int, depth: int = 20) -> dict:
    """A snapshot with so many events of a training loop, as PyTorch writes it: each event has a list of frames of its
    own, and the lists share their dictionaries."""
    frames = [{"filename": f"/work/train_{number}.py", "line": number, "name": "forward"} for number in range(200)]
    trace, live, address, time = [], [], 2**40, 0

    def event(action, addr, size, place):
        listed = [frames[(place + step) % 200] for step in range(depth)]
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 10**15 + len(trace),
                "compile_context": "N/A", "user_metadata": "", "frames": listed}

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
