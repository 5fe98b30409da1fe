"""Functions of `torch` that do something else within a simulation.

`cuda_names` meets code that names CUDA; `save_and_compile` passes over what changes no tensor on the card.
"""
