"""Softmax attention over patterns: its definition, and every way to execute it."""
