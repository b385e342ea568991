"""Pairs of source and target texts for encoder-decoders: reads them from files, encodes them, and makes batches."""
