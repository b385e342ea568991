"""Trains many runs by one plan: a config with several seeds, or a grid of tasks by attention mechanisms."""
