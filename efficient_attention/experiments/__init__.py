"""Plans of many training runs: one config with several seeds, and a grid of tasks by attention mechanisms."""
