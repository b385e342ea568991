"""Trains a config's model: python train.py --config configs/quickstart.py --workdir runs/x [--config.train.steps=9]."""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import sys

from ml_collections import config_flags

from efficient_attention.commands.command_line import missing_flag_error, parse_flags, run_command
from efficient_attention.commands.flags import define_verify, define_workdir
from efficient_attention.commands.host_flags import define_host_flags, multi_host_run_from_flags
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase

CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/; set fields with --config.<group>.<field>=value.'
)
WORKDIR = define_workdir('Folder of the run: config, metrics, checkpoints, report.')
VERIFY = define_verify()
define_host_flags()


def main() -> None:
    """Parses the flags, and trains the model of the config."""
    needs_no_config = any(word.lower() in ('--verify', '--verify=true') for word in sys.argv)
    parse_flags(sys.argv, required=('workdir',) if needs_no_config else ('config', 'workdir'))
    # These imports are late, because --help and errors about flags would otherwise take twice as long.
    from efficient_attention.training.fill_config import fill_config
    from efficient_attention.training.loop import train
    from efficient_attention.workdir.checkpoint_verification import verify_checkpoints
    from efficient_attention.workdir.folder_kind import RUN, check_folder_kind_and_parents

    if VERIFY.value:
        verify_checkpoints(WORKDIR.value)
        return
    if CONFIG.value is None:  # the flag parser accepts a missing --config if --noverify follows --verify
        raise missing_flag_error('config')
    check_folder_kind_and_parents(WORKDIR.value, RUN)
    note_phase(PREPARATION)
    tune_allocator()
    values = CONFIG.value.to_dict()
    with multi_host_run_from_flags({'config': values}):
        filled = fill_config(values)
        train(filled.config, WORKDIR.value, examples=filled.examples, pretrained=filled.pretrained)


if __name__ == '__main__':
    run_command(main)
