"""Generates or reads labelled rows of ids for Long Range Arena and two similar tasks (associative recall, same-document
passages)."""
