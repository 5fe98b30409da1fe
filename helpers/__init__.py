"""Helpers for the notebook series: the reference model, the card it trains on, and the memory plots."""

from helpers.card import open_card
from helpers.data import make_batch
from helpers.display import show
from helpers.model import FusionConfig, FusionTransformer, parameter_count
from helpers.run import ROLES, GiB, KiB, MiB, format_bytes

__all__ = ["ROLES", "FusionConfig", "FusionTransformer", "GiB", "KiB", "MiB", "format_bytes", "make_batch", "open_card",
           "parameter_count", "show"]
