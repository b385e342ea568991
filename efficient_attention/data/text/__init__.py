"""Continuous text for language models: stores it on disk as token ids, and makes rows of consecutive tokens."""
