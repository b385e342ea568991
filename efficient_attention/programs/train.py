"""Trains the model of a config: efficient-attention train --config configs/quickstart.py --workdir runs/x

Config fields are flags too, such as --config.train.steps=9. The same command with the same workdir resumes the run.
"""

import sys

from absl import flags

from efficient_attention.commands.command_line import missing_flag_error, parse_flags
from efficient_attention.commands.flags import define_config, define_profile, define_verify, define_workdir
from efficient_attention.commands.host_flags import define_host_flags, multi_host_run_from_flags
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase


def main() -> None:
    """Parses the flags, and trains the model of the config."""
    options = define_flags()
    needs_no_config = any(word.lower() in ('--verify', '--verify=true') for word in sys.argv)
    required = ('workdir',) if needs_no_config else ('config', 'workdir')
    parse_flags(sys.argv, required, options=options, about=__doc__)
    # These imports are late, because --help and errors about flags would otherwise take twice as long.
    from efficient_attention.training.fill_config import fill_config
    from efficient_attention.training.loop import train
    from efficient_attention.workdir.checkpoint_verification import verify_checkpoints
    from efficient_attention.workdir.folder_kind import RUN, check_folder_kind_and_parents

    if options.verify:
        verify_checkpoints(options.workdir)
        return
    if options.config is None:  # the flag parser accepts a missing --config if --noverify follows --verify
        raise missing_flag_error('config')
    check_folder_kind_and_parents(options.workdir, RUN)
    note_phase(PREPARATION)
    tune_allocator()
    values = options.config.to_dict()
    # A profile changes the compiled program on GPUs, so all processes must have the same.
    profile = list(options.profile) if options.profile else None
    with multi_host_run_from_flags({'config': values, '--profile': profile}, options):
        filled = fill_config(values)
        train(
            filled.config,
            options.workdir,
            examples=filled.examples,
            pretrained=filled.pretrained,
            profile=options.profile,
        )


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_config('Config file; set fields with --config.<group>.<field>=value.', options)
    define_workdir('Folder of the run: config, metrics, checkpoints, report.', options)
    define_profile(options)
    define_verify(options)
    define_host_flags(options)
    return options
