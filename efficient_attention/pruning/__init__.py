"""Pruning: computes the masked parameters of a model from its trained parameters, the scores and the training step."""
