r"""Searches config fields: trains one trial per combination of values, and ranks the trials in a table.

    efficient-attention sweep --config configs/quickstart.py --workdir runs/sweep --trials 20 --sampler tpe \
      --search 'optimizer.learning_rate=log(1e-5,1e-3)' --search 'model.layers=2,4,6' --metric masked_lm_loss --mode min

`--search` names a field and its values: log(a,b) and uniform(a,b) are floats, int(a,b) whole numbers, and a,b,c are
single values. The sampler `random` draws each trial, `grid` takes all combinations, and `tpe` learns from the earlier
trials (Optuna). Each trial is trained with all `--seeds`. Its metric is the mean of their best evaluations.

The same command resumes: finished trials are kept, stopped and failed trials are trained. A larger `--trials` adds
trials. The folder gets sweep.md, sweep.html and trials.json; `--table` writes only these files anew and trains nothing.
`--slurm` trains nothing either: it prints a SLURM array script for the samplers random and grid.
"""

import json
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import define_config, define_workdir
from efficient_attention.errors import InputError, RunError
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase


def main() -> None:
    """Reads the flags, trains the trials, and prints the table of results."""
    options = define_flags()
    parse_flags(sys.argv, ('config', 'workdir'), options=options, about=__doc__)
    # These imports are late, so that --help and flag errors are fast.
    from efficient_attention.experiments.multi_seed_runs import check_no_seed_override
    from efficient_attention.experiments.search_space import parse_search
    from efficient_attention.experiments.sweep import make_sweep, read_results, run_sweep
    from efficient_attention.experiments.sweep_report import slurm_script, sweep_table, write_sweep_report
    from efficient_attention.workdir.folder_kind import SWEEP, check_folder_kind_and_parents

    overrides = config_flags.get_override_values(options['config'])
    check_no_seed_override(overrides)
    values = options.config.to_dict()
    search = parse_search(options.search, values)
    for field in search:
        if field.name in overrides:
            raise InputError(f'--search and --config both set {field.name}; leave one out')
    check_folder_kind_and_parents(options.workdir, SWEEP)
    sweep = make_sweep(
        values,
        search,
        options.workdir,
        seeds=options.seeds,
        sampler=options.sampler,
        trials=options.trials,
        objective=(options.metric, options.mode or ''),
    )
    if options.slurm:
        if sweep.sampler == 'tpe':
            raise InputError('--slurm needs --sampler random or grid: tpe chooses a trial from the earlier results')
        command = [sys.executable, '-m', 'efficient_attention', 'sweep', *sweep_words(options)]
        print(slurm_script(sweep, command, Path.cwd()), end='')
        return
    if options.table:
        results = read_results(sweep)
        write_sweep_report(sweep, results)
        print(sweep_table(sweep, results))
        return
    note_phase(PREPARATION)
    tune_allocator()
    results = run_sweep(sweep, options.trial)
    write_sweep_report(sweep, results)
    print(sweep_table(sweep, results))
    failed = [one['number'] for one in results if 'error' in one]
    print(json.dumps({'trials': len(results), 'failed': failed}))
    if failed:
        raise RunError(f'{len(failed)} of {sweep.trials} trials failed: {", ".join(map(str, failed))}')


def sweep_words(options: flags.FlagValues) -> list[str]:
    """Returns the given flags as words of a command, except the flags that choose what the command does."""
    given = [options[name] for name in options if options[name].present and name not in ('slurm', 'table', 'trial')]
    return [word for flag in given for word in flag.serialize().split('\n')]  # one line per value of a repeated flag


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_config('Config file, as for train.', options)
    define_workdir('Folder that gets the workdirs of all trials.', options)
    ranges = "A field and its values, such as 'model.layers=2,4,6' or 'optimizer.learning_rate=log(1e-5,1e-3)'."
    flags.DEFINE_multi_string('search', [], ranges, flag_values=options)
    ways = 'How the values of a trial are chosen.'
    flags.DEFINE_enum('sampler', 'random', ['random', 'tpe', 'grid'], ways, flag_values=options)
    count = 'Number of trials; needed by random and tpe. By default, grid takes all combinations.'
    flags.DEFINE_integer('trials', None, count, lower_bound=1, flag_values=options)
    flags.DEFINE_list('seeds', ['0'], 'Seeds of each trial, separated by commas.', flag_values=options)
    metric = 'Metric of an evaluation that ranks the trials; by default checkpoint.best_metric of the config.'
    flags.DEFINE_string('metric', '', metric, flag_values=options)
    flags.DEFINE_enum(
        'mode',
        None,
        ['min', 'max'],
        'Whether the smallest or the largest value is best; by default checkpoint.best_mode of the config.',
        flag_values=options,
    )
    flags.DEFINE_integer('trial', None, 'Train only the trial with this number.', lower_bound=0, flag_values=options)
    table = 'Train nothing; write the table and page of the trials that have ended.'
    flags.DEFINE_bool('table', False, table, flag_values=options)
    flags.DEFINE_bool('slurm', False, 'Only print a SLURM array script.', flag_values=options)
    return options
