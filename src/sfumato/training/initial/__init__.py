"""Initial weights of a run: other runs, packaged weights, priors, and frozen layers."""
