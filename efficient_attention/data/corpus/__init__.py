"""Corpora of documents: preparation on disk as sentences of ids, and rows for masking or denoising."""
