"""What a simulation passes over, because it changes no tensor on the card or cannot be done without values."""

import contextlib
import warnings

import torch

from helpers.torch_private import FakeTensor, tree_iter


def has_no_values(thing) -> bool:
    return any(isinstance(leaf, (FakeTensor, torch.nn.Module)) for leaf in tree_iter(thing))


def _saving(save):
    """`torch.save`, which leaves the file alone where there is nothing to save."""
    def save_values(obj, f, *args, **kwargs):
        if not has_no_values(obj):
            return save(obj, f, *args, **kwargs)
        warnings.warn("A simulation has no values: torch.save(...) wrote nothing.", stacklevel=2)
        return None
    return save_values


def uncompiled(model=None, **options):
    """`torch.compile` that does not compile, as a decorator too."""
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def pass_over():
    """Within it `torch.save` writes no file that would hold no values, and nothing is compiled: what was compiled
    before runs as it was written. (A compiled model keeps other tensors. The simulation does not know which.)"""
    save, compile_, stance = torch.save, torch.compile, torch.compiler.set_stance("force_eager")
    torch.save, torch.compile = _saving(save), uncompiled
    try:
        with stance:
            yield
    finally:
        torch.save, torch.compile = save, compile_
