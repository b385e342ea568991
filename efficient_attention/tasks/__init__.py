"""Training tasks: a task joins the data, model, objective and metrics of a run behind one interface (task.py)."""
