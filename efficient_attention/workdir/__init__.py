"""The files of a run's folder: config, lock, fingerprint, metrics, report and checkpoints with checksums."""
