"""Which cards there are, and what one can do.

`catalogue` knows models of graphics cards; `base` is what every card can do; `cuda_card` is the GPU of this machine,
`simulated_card` one without a GPU; `opening` picks between the two.
"""
