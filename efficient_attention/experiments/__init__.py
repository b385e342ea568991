"""Plans of many runs: one config with several seeds, and a grid of tasks by mechanisms."""
