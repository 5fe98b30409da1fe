"""Opens the card to train on: the CUDA card of this machine, or a simulated one, behind the same calls."""

import os

import torch

from helpers.cards.catalogue import find_card
from helpers.cards.cuda_card import CudaCard
from helpers.cards.simulated_card import SimulatedCard


def open_card(name: str = "RTX 3090", kind: str | None = None, capacity: int | None = None,
              expandable_segments: bool = False, leave_out: tuple[str, ...] = ()):
    """The card to train on: `CudaCard` where there is a CUDA GPU, else `SimulatedCard`.

    name: which card to be (or, on a GPU, which card's capacity to keep to). kind: "cuda" or "simulated" decides;
    else the environment variable CARD does. capacity: bytes that PyTorch may reserve, instead of the card's own.
    expandable_segments, leave_out (parts of the simulation to switch off, see `SimulatedCard`): simulated card only.
    Raises ValueError for an unknown name or kind, RuntimeError for kind "cuda" where there is no GPU.
    """
    spec = find_card(name)
    kind = kind or os.environ.get("CARD") or ("cuda" if torch.cuda.is_available() else "simulated")
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("CARD=cuda needs a CUDA GPU and PyTorch finds none here. Use CARD=simulated.")
        return CudaCard(spec, capacity)
    if kind != "simulated":
        raise ValueError(f"Unknown kind of card {kind!r}. Use 'cuda' or 'simulated' (argument, or CARD=...).")
    return SimulatedCard(spec, capacity, expandable_segments, leave_out)
