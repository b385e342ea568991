"""Long Range Arena: labelled rows of ids, generated or read from the original files, and their cache."""
