"""Pruning: from trained parameters, scores and a step to the parameters that a model computes with."""
