"""Plans a training run: computes the cost of a step from its compiled program, without having the devices."""
