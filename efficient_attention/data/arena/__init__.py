"""Long Range Arena and two similar tasks, recall and passages: labelled rows of ids, generated or read from files."""
