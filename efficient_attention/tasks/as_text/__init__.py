"""Labelled tasks as pairs of texts: questions and labels in words, and what is written scored as the tasks ask for."""
