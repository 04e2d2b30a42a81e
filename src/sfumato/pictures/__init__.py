"""One look for every picture, and the learning curves, which are drawn from plain records."""
