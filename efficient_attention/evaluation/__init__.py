"""Runs a task's metrics over every held-out example, exactly once."""
