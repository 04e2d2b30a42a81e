"""Pictures of runs: learning curves and evaluations, in one look."""
