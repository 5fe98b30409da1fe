"""Helpers for the notebook series: the reference model, the card it trains on, and the memory plots."""
