"""Losses and metrics of a model on a batch, as sums over examples."""
