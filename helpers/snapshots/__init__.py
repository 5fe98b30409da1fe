"""PyTorch's memory snapshots, read: what the file of a run, or of any real card, says.

`unpickling` reads a file without running it, `frames` finds the reader's own line in
a traceback, `reading` makes events, sizes and places of it, `snapshot` is the answer that a reader gets. `diagnosis`
says which trouble it is, from `places_in_memory` and `steps`; `replaying` puts the same requests through the allocator
with other settings, `comparing` says how far that can be trusted; `report` prints all of it. The picture over time is
in `helpers.plots`.
"""
