"""Sends a run's metrics to experiment trackers: TensorBoard, CSV files, Trackio, Weights & Biases and MLflow.

Trackio, Weights & Biases and MLflow run in processes of their own (`separate_process.py`). So they can neither stop nor
slow the training.
"""
