"""What a run learns: each task is data, objective and metrics, so that one loop serves all."""
