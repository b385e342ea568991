"""Reads and writes the files in a run's workdir: config, lock, metrics, report, and checkpoints with checksums.

Workdirs and checkpoints also contain a fingerprint: the config fields and hashes that decide a run's results. A run
that resumes compares its fingerprint with the saved one.
"""

import logging

# Orbax logs through absl. If the root logger has no handler, absl adds one whose lines begin with 'WARNING:<module>:'.
# So this handler is added first. It prints only the message, as the commands do.
logging.basicConfig(format='%(message)s')
