"""Trains one config with several seeds, and prints mean and standard deviation of its metrics as a table.

    efficient-attention seeds --config configs/finetune/glue.py:rte --workdir runs/rte --seeds 0,1,2,3,4

Each seed has a workdir, <workdir>/seed_<n>. The same command resumes unfinished seeds. The last line of output is one
JSON object, also written to <workdir>/seeds.json.
"""

import json
import sys

from absl import flags
from ml_collections import config_flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import define_config, define_workdir
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase


def main() -> None:
    """Reads the flags, trains the config with each seed, and prints the table of metrics."""
    options = define_flags()
    parse_flags(sys.argv, ('config', 'workdir'), options=options, about=__doc__)
    from efficient_attention.experiments.multi_seed_runs import (
        check_no_seed_override,
        seeds_table,
        train_seeds,
    )  # imported late, so that --help and flag errors are fast
    from efficient_attention.workdir.folder_kind import SEEDS as OF_SEEDS
    from efficient_attention.workdir.folder_kind import check_folder_kind_and_parents

    check_no_seed_override(config_flags.get_override_values(options['config']))
    check_folder_kind_and_parents(options.workdir, OF_SEEDS)
    note_phase(PREPARATION)
    tune_allocator()
    summary = train_seeds(options.config.to_dict(), options.workdir, options.seeds)
    print(seeds_table(summary))
    print(json.dumps(summary))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_config('Config file, as for train.', options)
    define_workdir('Folder that gets the workdirs of all seeds.', options)
    flags.DEFINE_list('seeds', ['0', '1', '2', '3', '4'], 'Seeds, separated by commas.', flag_values=options)
    return options
