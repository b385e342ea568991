"""Tokenizers: loading one from a file, training one, special tokens, and fixed vocabularies."""
