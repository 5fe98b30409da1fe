"""A model of PyTorch's CUDA caching allocator.

`caching_allocator` is the allocator, `blocks` what it cuts memory into, `expandable_segments` the setting of that name,
`simpler_allocators` leave parts out to show what each is worth.
"""
