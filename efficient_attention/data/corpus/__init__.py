"""Corpora of documents: prepares them on disk as sentences of token ids, and makes rows for masked language models or
for denoising."""
