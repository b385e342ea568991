"""Long Range Arena's tasks: rows of ids with a class each, generated or read, and kept in a cache."""
