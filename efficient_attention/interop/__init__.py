"""Checkpoints in and out, with their tokenizers; trained models changed: other layers, more positions, smaller."""
