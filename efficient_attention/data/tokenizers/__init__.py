"""Tokenizers: loading from a file, training, special tokens, and fixed vocabularies."""
