"""Files: new ones, files replaced at once, JSON lines, and locks."""
