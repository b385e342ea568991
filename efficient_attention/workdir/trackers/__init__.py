"""Sends a run's metrics to experiment trackers: TensorBoard, CSV files, Trackio, Weights & Biases and MLflow.

Trackers of other projects run in a process of their own (`separate_process.py`), so that they can neither stop nor slow
the training.
"""
