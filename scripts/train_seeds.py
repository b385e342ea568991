"""Trains one config with several seeds, and prints mean and standard deviation of its metrics as a table.

python scripts/train_seeds.py --config configs/finetune/glue.py:rte --workdir runs/rte --seeds 0,1,2,3,4

Each seed has a workdir, <workdir>/seed_<n>. The same command resumes unfinished seeds. The last line of output is one
JSON object, also written to <workdir>/seeds.json.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import json
import sys

from absl import flags
from ml_collections import config_flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_workdir
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase

CONFIG = config_flags.DEFINE_config_file('config', None, 'Config file, as for train.py.')
WORKDIR = define_workdir('Folder that gets the workdirs of all seeds.')
SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2', '3', '4'], 'Seeds, separated by commas.')


def main() -> None:
    """Reads the flags, trains the config with each seed, and prints the table of metrics."""
    parse_flags(sys.argv, required=('config', 'workdir'))
    from efficient_attention.experiments.multi_seed_runs import (
        check_no_seed_override,
        seeds_table,
        train_seeds,
    )  # imported late, so that --help and flag errors are fast
    from efficient_attention.workdir.folder_kind import SEEDS as OF_SEEDS
    from efficient_attention.workdir.folder_kind import check_folder_kind_and_parents

    check_no_seed_override(config_flags.get_override_values(flags.FLAGS['config']))
    check_folder_kind_and_parents(WORKDIR.value, OF_SEEDS)
    note_phase(PREPARATION)
    tune_allocator()
    summary = train_seeds(CONFIG.value.to_dict(), WORKDIR.value, SEEDS.value)
    print(seeds_table(summary))
    print(json.dumps(summary))


if __name__ == '__main__':
    run_command(main)
