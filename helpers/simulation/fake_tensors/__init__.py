"""Tensors that have shape, type and device, and no data.

`fast_mode` makes PyTorch's FakeTensors quickly; `module_moves` lets a module move to the device as on a real card.
"""
