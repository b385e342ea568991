"""A run's folder: its config, lock, fingerprint, metrics, report and checkpoints."""
