"""Many runs of one plan: a config with several seeds, and a grid of tasks by mechanisms."""
