"""Plans a training run: estimates memory and time of a training step from its compiled program, without the devices."""
