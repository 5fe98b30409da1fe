"""A CUDA card without a GPU: PyTorch's own code on tensors without data.

`device` dispatches as CUDA does, `allocator` is a model of CUDA's caching allocator, `fake_tensors` are the tensors,
`values` what is known of their values, `torch_functions` what functions of `torch` do differently meanwhile.
`session` puts all of it in place for the time of a run, `interrupts` lets a reader stop one, and
`helpers.torch_private` lists what it needs of PyTorch's inside.
"""
