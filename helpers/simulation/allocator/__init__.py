"""A model of PyTorch's CUDA caching allocator.

`caching_allocator` is the allocator, `blocks` what it cuts memory into, `expandable_segments` the setting of that name,
`settings` all that may be set and `giving_back` what some of them give back early; `simpler_allocators` leave parts out
to show what each is worth.
"""
