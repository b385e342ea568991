"""Pairs of texts, a source and its target: reading, encoding, batches."""
