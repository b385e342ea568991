"""Labelled tasks as text-to-text pairs: inputs and labels in words, scored by the official metrics of each task."""
