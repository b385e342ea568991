"""Attention mechanisms as pure functions on arrays: `attend`, a folder per mechanism, patterns, caches for decoding."""
