"""Trains a config's model: python train.py --config configs/quickstart.py --workdir runs/x [--config.train.steps=9]."""

import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from efficient_attention.training.allocator import keep_freed_memory
from efficient_attention.training.command import parse_flags, run_command

CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/; fields follow as --config.<group>.<field>=value.'
)
WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run: config, metrics, checkpoints, report.')
DISTRIBUTED = flags.DEFINE_bool('distributed', False, 'Join the other processes of the run through jax.distributed.')
COORDINATOR = flags.DEFINE_string('coordinator', None, 'host:port of process 0, where the cluster does not tell.')
PROCESS_COUNT = flags.DEFINE_integer('process_count', None, 'Processes of the run, where the cluster does not tell.')
PROCESS_ID = flags.DEFINE_integer('process_id', None, 'Number of this process, where the cluster does not tell.')


def main() -> None:
    """Reads the flags and trains."""
    parse_flags(sys.argv, required=('config', 'workdir'))
    print(keep_freed_memory(), file=sys.stderr)
    from efficient_attention.training.config import from_dict  # after the allocator, before anything large
    from efficient_attention.training.hosts import join_hosts
    from efficient_attention.training.loop import train

    if DISTRIBUTED.value:
        join_hosts(COORDINATOR.value, PROCESS_COUNT.value, PROCESS_ID.value)

    train(from_dict(CONFIG.value.to_dict()), Path(WORKDIR.value))


if __name__ == '__main__':
    run_command(main)
