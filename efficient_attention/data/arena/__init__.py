"""Long Range Arena: rows of ids with a class each, generated or read, and their cache."""
