"""Random numbers, precision and sums, where privacy depends on their bits."""
