"""Reads and writes the files in a run's workdir: config, lock, fingerprint, metrics, report, and checkpoints with
checksums.
"""
