"""Long Range Arena and two similar tasks (associative recall, same-document passages): labelled rows of ids, generated
or read from files."""
