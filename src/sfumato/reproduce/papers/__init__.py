"""The papers, one module each: what they published, row by row, and how `best` differs from it."""
