"""Draws and releases: the count of a draw, its clipped sum, that sum over ranks, what is spent."""
