"""Helpers for the notebook series: the reference model, the card it trains on, and the memory plots."""

from helpers.cards.opening import open_card
from helpers.data import make_batch
from helpers.lessons import checks
from helpers.lessons.display import show
from helpers.measuring.run import ROLES
from helpers.model import FusionConfig, FusionTransformer, parameter_count
from helpers.snapshots.snapshot import open_snapshot
from helpers.units import GiB, KiB, MiB, format_bytes

__all__ = ["ROLES", "FusionConfig", "FusionTransformer", "GiB", "KiB", "MiB", "checks", "format_bytes", "make_batch",
           "open_card", "open_snapshot", "parameter_count", "show"]
