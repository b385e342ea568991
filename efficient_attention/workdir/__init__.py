"""Reads and writes the files in a run's workdir: config, lock, metrics, report, and checkpoints with checksums.

Workdirs and checkpoints also contain a fingerprint: the config fields and hashes that decide a run's results. A run
that resumes compares its fingerprint with the saved one.
"""

import logging


def print_plain_log_lines() -> None:
    """Makes log lines show only their message, as commands do. A logging set-up of the caller is kept.

    Orbax logs through absl. Without a handler, absl would add one whose lines begin with 'WARNING:<module>:'.
    """
    logging.basicConfig(format='%(message)s')
