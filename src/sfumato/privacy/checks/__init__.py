"""Checks of a model before its first batch and while it trains."""
