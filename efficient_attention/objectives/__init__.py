"""What is minimised and counted: (model, batch) -> sums of losses and metrics."""
