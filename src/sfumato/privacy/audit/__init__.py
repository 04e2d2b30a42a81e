"""Lower bounds on epsilon, measured on one run: canaries, their scores, and tests of the claim."""
