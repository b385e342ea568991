"""Writes Long Range Arena datasets in the layout of the original files, so that other projects can load them.

    python scripts/make_arena_data.py --output data/lra --train listops:rows=96000:length=500-2000 \
      --dev listops:rows=2000:length=500-2000 --test listops:rows=2000:length=500-2000
    python scripts/make_arena_data.py --output data/lra --train pathfinder:rows=200000:size=32

Datasets are named as in configs, see efficient_attention/data/arena/dataset_registry.py. The layouts are described in
efficient_attention/data/arena/benchmark_format_writer.py. The last line of output is one JSON object with the files.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_output
from efficient_attention.errors import InputError

OUTPUT = define_output('Folder for the files.')
SETS = {
    split: flags.DEFINE_string(split, '', f'The dataset of the {split} rows.') for split in ('train', 'dev', 'test')
}


def main() -> None:
    """Reads the flags, and writes the chosen datasets in the original layout."""
    parse_flags(sys.argv, ('output',))
    from efficient_attention.data.arena.benchmark_format_writer import write_original_format
    from efficient_attention.data.arena.dataset_registry import (
        open_arena_dataset,
    )  # imported late, so that --help and flag errors are fast

    sets = {split: open_arena_dataset(flag.value, f'--{split}') for split, flag in SETS.items() if flag.value}
    if not sets:
        raise InputError('--train, --dev and --test are missing; give a dataset for at least one of them')
    print(json.dumps({'files': [str(path) for path in write_original_format(sets, OUTPUT.value)]}))


if __name__ == '__main__':
    run_command(main)
