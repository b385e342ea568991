"""Trains one config with several seeds, and computes the mean and standard deviation of its metrics."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from efficient_attention.atomic_files import write_atomically, write_failed_error
from efficient_attention.config.train import MOST_SEED
from efficient_attention.errors import InputError
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from efficient_attention.workdir.checkpoint_reader import read_best_evaluation
from efficient_attention.workdir.folder_kind import SEEDS, SEEDS_SUMMARY, check_folder_kind

# All seeds share this folder of compiled programs. JAX runs these programs, so only the owner may write to the folder.
# The folder of compiled programs is never in a workdir, because another user may have written the workdir.
PROGRAMS = Path('cache', 'programs')


def train_seeds(values: Mapping[str, Any], workdir: Path, seeds: Sequence[str]) -> dict[str, Any]:
    """Trains a config with each seed. Returns each seed's best evaluation, and the mean and standard deviation over
    seeds.

    The best evaluation has the best `checkpoint.best_metric`; without such a metric it is the last evaluation.

    Args:
        values: the values of a config file.
        workdir: gets a workdir per seed, and seeds.json at the end.
        seeds: whole numbers as text.

    Returns:
        {'seeds': {seed: metrics}, 'mean': metrics, 'deviation': metrics}.

    Raises:
        InputError: a seed is invalid or occurs twice, the folder is a run's or a grid's, no text is held out, or
            `train` raises it.
        RunError, InputError: the folder of compiled programs cannot be made.
        RunStopped: a stop signal ended a run; the same call resumes.
    """
    check_seeds(seeds)
    check_folder_kind(workdir, SEEDS)
    config, examples, pretrained = fill_config(values)
    if not config.has_evaluation_data:
        raise InputError('no text is held out (data.held_out=0), and seeds are compared by held-out metrics')
    enable_compilation_cache()
    runs: dict[str, dict[str, float]] = {}
    for seed in seeds:
        folder = workdir / f'seed_{seed}'
        seeded = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=int(seed)))
        train(seeded, folder, examples=examples, pretrained=pretrained)
        runs[seed] = read_best_evaluation(folder, config.checkpoint)
    summary = {'seeds': runs, **mean_and_deviation(list(runs.values()))}
    if jax.process_index() == 0:
        write_atomically(workdir / SEEDS_SUMMARY, json.dumps(summary, indent=2) + '\n')
    return summary


def check_seeds(seeds: Sequence[str]) -> None:
    """Raises InputError unless the seeds are whole numbers and all different."""
    if not seeds or not all(is_valid_seed(seed) for seed in seeds) or len({*seeds}) < len(seeds):
        raise InputError(
            f'--seeds is {",".join(seeds)!r}; it must be different whole numbers from 0 to {MOST_SEED} '
            'with commas, as 0,1,10'
        )


def check_no_seed_override(overrides: Mapping[str, Any]) -> None:
    """Raises InputError if the command line overrides train.seed, because --seeds already sets the seeds."""
    if 'train.seed' in overrides:
        raise InputError(f'--config.train.seed is {overrides["train.seed"]}, which --seeds names; leave it out')


def is_valid_seed(text: str) -> bool:
    """Returns whether a text is a valid `train.seed`: a whole number without a sign or leading zeros."""
    is_short = len(text) <= len(str(MOST_SEED))
    return is_short and text.isdecimal() and text == str(int(text)) and int(text) <= MOST_SEED


def enable_compilation_cache() -> None:
    """Makes JAX cache compiled programs in a folder that only this user can write to, unless JAX already has a cache
    folder.

    Raises:
        RunError, InputError: the folder cannot be made, or belongs to another user.
    """
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # defined at run time
        return
    folder = PROGRAMS.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise write_failed_error(folder, error) from None
    jax.config.update('jax_compilation_cache_dir', str(folder))


def mean_and_deviation(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Returns the 'mean' and the 'deviation' of each metric over runs: the sample standard deviation, or 0 for a single
    run.
    """
    names = [name for name in runs[0] if name != 'step' and all(name in run for run in runs)]
    values = {name: [run[name] for run in runs] for name in names}
    return {
        'mean': {name: statistics.fmean(numbers) for name, numbers in values.items()},
        'deviation': {name: statistics.stdev(numbers) if len(numbers) > 1 else 0.0 for name, numbers in values.items()},
    }


def seeds_table(summary: Mapping[str, Any]) -> str:
    """Returns a text table with one line per metric: the value of each seed, the mean and the standard deviation."""
    seeds = list(summary['seeds'])
    rows = [['metric', *(f'seed {seed}' for seed in seeds), 'mean', 'deviation']]
    for name in summary['mean']:
        numbers = [summary['seeds'][seed][name] for seed in seeds]
        numbers += [summary['mean'][name], summary['deviation'][name]]
        rows.append([name, *(f'{number:.4f}' for number in numbers)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
