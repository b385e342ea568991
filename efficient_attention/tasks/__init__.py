"""What a run learns: each task joins data, model, objective and metrics behind one interface (task.py)."""
