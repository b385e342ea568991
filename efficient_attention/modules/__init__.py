"""Thin Flax NNX modules: parameters and their names, then one call into `attention`."""
