"""Evaluates a run on its held-out split: python eval.py --workdir runs/quickstart [--checkpoint=best].

The last line that it prints is one JSON object.
"""

import json
import sys
from pathlib import Path

from absl import flags

from efficient_attention.training.allocator import keep_freed_memory
from efficient_attention.training.command import parse_flags, run_command
from efficient_attention.training.hosts import define_host_flags, join_hosts_of_flags

WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run.')
CHECKPOINT = flags.DEFINE_string(
    'checkpoint', 'last', 'Checkpoint to evaluate: last, best (by checkpoint.best_metric of its config), or a step.'
)
BATCH_SIZE = flags.DEFINE_integer(
    'batch_size', None, 'Rows at a time, over all devices; the config decides by default.'
)
define_host_flags()


def main() -> None:
    """Reads the flags, evaluates and prints the metrics."""
    parse_flags(sys.argv, required=('workdir',))
    print(keep_freed_memory(), file=sys.stderr)
    from efficient_attention.evaluation.evaluate_workdir import (
        evaluate_workdir,
    )  # after the allocator, before anything large

    join_hosts_of_flags()
    print(json.dumps(evaluate_workdir(Path(WORKDIR.value), checkpoint=CHECKPOINT.value, batch_size=BATCH_SIZE.value)))


if __name__ == '__main__':
    run_command(main)
