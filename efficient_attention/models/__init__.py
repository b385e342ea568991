"""Whole models, each a choice of embeddings, layers, stack and heads."""
