"""Tasks that a run can learn: each is data, objective and metrics, so that one loop serves all."""
