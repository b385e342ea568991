"""Continuous text for language models: ids on disk, and rows of consecutive tokens."""
