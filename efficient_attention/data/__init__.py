"""From files to batches: sources, tokenizers, and a room for each kind of rows; batching and preparation serve all."""
