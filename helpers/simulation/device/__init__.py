"""The device `sim`: which kernels and casts CUDA would choose.

`backend` registers it with PyTorch; `autocast`, `attention` and `kernels` choose as CUDA does; `device_guard` lets an
error leave the backward pass alive.
"""
