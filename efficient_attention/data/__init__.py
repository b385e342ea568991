"""The data pipeline from files to batches: sources, tokenizers, preparation, batching, and a folder per kind of row."""
