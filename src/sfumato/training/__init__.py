"""The loop, optimizers, averaging, checkpoints and the run folder."""
