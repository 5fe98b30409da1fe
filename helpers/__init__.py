"""Helpers for the notebook series: the reference model, the card it trains on, and the memory plots."""

from helpers.card import open_card
from helpers.run import ROLES, GiB, KiB, MiB

__all__ = ["ROLES", "GiB", "KiB", "MiB", "open_card"]
