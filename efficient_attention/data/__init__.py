"""From files to batches: sources, tokenizers, a folder for each kind of rows; batching and preparation serve all."""
