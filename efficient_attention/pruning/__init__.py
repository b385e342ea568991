"""Pruning: masked model parameters, computed from trained parameters, scores and the step."""
