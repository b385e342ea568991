"""The data pipeline from source files to batches: sources, tokenizers, preparation and batching, with one folder per
kind of training row."""
