"""From text to batches: sources, tokenizers, prepared corpora, examples, the input pipeline."""
