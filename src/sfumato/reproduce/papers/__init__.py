"""The papers, one module each: published numbers row by row, and the changes of `best`."""
