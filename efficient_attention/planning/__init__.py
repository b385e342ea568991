"""Plans a training run: computes the cost of a step from the program compiled for given devices, without the devices."""
