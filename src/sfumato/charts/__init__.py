"""Charts: one description (`chart`), and two renderers of it (`png` and `svg`)."""
