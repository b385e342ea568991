"""Labelled tasks as pairs of texts: questions and labels in words, scored by each task's official metrics."""
