"""PyTorch's memory snapshots: what a run writes, and what any real card's file says.

`writing` makes the file of a run. `unpickling` reads a file without running it, `frames` finds the reader's own line in
a traceback, `reading` makes events, sizes and places of it, `snapshot` is the answer that a reader gets. `diagnosis`
says which of the four troubles it is, `replaying` puts the same requests through the allocator with other settings,
`report` prints all of it. Pictures are in `helpers.plots`.
"""
