"""Files: new ones, JSON lines, and locks."""
