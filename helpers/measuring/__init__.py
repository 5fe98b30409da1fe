"""What a training run did with memory, the same for every card.

`recorder` sees every block of memory come and go, `roles` says what each is for, `run` is the answer that a reader
gets, `roofline` an estimate of time; `history` keeps what the allocator did, for the file that `snapshot_file` writes.
"""
