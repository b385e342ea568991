"""Pairs of source and target texts for encoder-decoders: readers, encoding and batches."""
