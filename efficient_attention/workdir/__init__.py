"""Reads and writes the files in a run's workdir: config, lock, metrics, report, and checkpoints with checksums.

Workdirs and checkpoints also contain a fingerprint: the config fields and hashes that decide a run's results. A run
that resumes compares its fingerprint with the saved one.
"""
