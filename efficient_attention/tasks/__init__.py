"""Training tasks. A task joins data, model, objective and metrics behind one interface (task.py)."""
