"""Loads and trains tokenizers, finds their special tokens, and provides fixed vocabularies."""
