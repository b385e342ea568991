"""Searches config fields: trains one trial per choice of values, each with the same seeds, and ranks the trials.

Random and grid search compute a trial's fields from its number, so several processes may train different trials. TPE
(tree-structured Parzen estimator, Bergstra et al. 2011) chooses each trial from the results of the earlier trials. Its
history is in `optuna.log` in the sweep's folder. The same call resumes: finished trials are read, a killed trial goes
on from its checkpoints.
"""

import copy
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.dict_conversion import flatten
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, RunError, RunStopped, missing_extra_error, one_line, show_error
from efficient_attention.experiments.multi_seed_runs import check_seeds, train_seeds
from efficient_attention.experiments.search_space import (
    Fields,
    SearchedField,
    grid_points,
    grid_size,
    random_point,
    suggested_point,
)
from efficient_attention.workdir.config_file import CONFIG
from efficient_attention.workdir.folder_kind import SWEEP, SWEEP_PLAN, check_folder_kind

HISTORY = 'optuna.log'
SAMPLERS = ('random', 'tpe', 'grid')
Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The plan of a sweep.

    Attributes:
        values: the values of the config file.
        search: the searched fields.
        workdir: the folder of the sweep; the runs of a trial are in <workdir>/trial_<n>/seed_<s>.
        seeds: seeds of each trial, as text.
        sampler: one of `SAMPLERS`.
        trials: number of trials.
        metric: the metric of an evaluation that ranks the trials.
        mode: 'min' if the smallest value is best, else 'max'.
    """

    values: Mapping[str, Any]
    search: tuple[SearchedField, ...]
    workdir: Path
    seeds: Sequence[str]
    sampler: str
    trials: int
    metric: str
    mode: str

    def folder(self, number: int) -> Path:
        """Returns the folder of a trial's runs."""
        return self.workdir / f'trial_{number:03d}'

    def result_path(self, number: int) -> Path:
        """Returns the path of a trial's result, next to the folder of its runs."""
        return self.workdir / f'trial_{number:03d}.json'

    def plan(self) -> dict[str, Any]:
        """Returns what must stay the same when the sweep is resumed; the number of trials may change."""
        search = {field.name: f'{field.kind}{list(field.values)}' for field in self.search}
        plan = {'sampler': self.sampler, 'seeds': ','.join(self.seeds), 'metric': self.metric, 'mode': self.mode}
        return {**plan, 'search': search, 'config': flatten(dict(self.values))}


def make_sweep(
    values: Mapping[str, Any],
    search: tuple[SearchedField, ...],
    workdir: Path,
    *,
    seeds: Sequence[str] = ('0',),
    sampler: str = 'random',
    trials: int | None = None,
    objective: tuple[str, str] = ('', ''),
) -> Sweep:
    """Returns a sweep with its defaults filled in.

    Args:
        values: the values of the config file.
        search: the searched fields.
        workdir: the folder of the sweep.
        seeds: seeds of each trial, as text.
        sampler: one of `SAMPLERS`.
        trials: number of trials; None = all points of a grid.
        objective: metric and mode; '' = `checkpoint.best_metric` and `checkpoint.best_mode` of the config.

    Raises:
        InputError: the number of trials or the metric is missing, or a grid has fewer points or continuous fields.
    """
    check_seeds(seeds)
    most = grid_size(search) if sampler == 'grid' else None
    if trials is None and most is None:
        raise InputError(f'--trials is missing; --sampler {sampler} needs a number of trials')
    if most is not None and trials is not None and trials > most:
        raise InputError(f'--trials is {trials}; the grid has {most} points')
    checkpoint = values.get('checkpoint', {})
    metric, mode = objective[0] or checkpoint.get('best_metric', ''), objective[1]
    if not metric:
        raise InputError(
            '--metric is missing, and the config has no checkpoint.best_metric; name one, such as masked_lm_loss'
        )
    mode = mode or (checkpoint.get('best_mode', 'min') if metric == checkpoint.get('best_metric') else '')
    if not mode:
        raise InputError(f'--mode is missing: is the smallest (min) or the largest (max) {metric} best?')
    return Sweep(values, search, workdir, tuple(seeds), sampler, trials or most or 0, metric, mode)


def run_sweep(sweep: Sweep, only: int | None = None) -> list[Result]:
    """Trains the trials of a sweep that are not finished, and returns the results of all trials.

    Args:
        sweep: the plan.
        only: the number of the only trial to train; None = all.

    Returns:
        One dict per trial, with 'number' and 'fields'. A successful trial also has 'value', the metric, and 'mean',
        'deviation' and 'seeds' from `train_seeds`. A failed trial has 'error', a message of one line.

    Raises:
        InputError: the folder belongs to another sweep, `only` is no trial, or the metric is unknown.
        RunStopped: a stop signal ended a run; the same call resumes.
    """
    if only is not None and not 0 <= only < sweep.trials:
        raise InputError(f'--trial is {only}; the sweep has the trials 0 to {sweep.trials - 1}')
    if sweep.sampler == 'tpe':
        import_optuna()
        if only is not None:
            raise InputError('--trial needs --sampler random or grid: tpe chooses a trial from the earlier results')
    claim_folder(sweep)
    try:
        return list(tpe_results(sweep)) if sweep.sampler == 'tpe' else numbered_results(sweep, only)
    except InputError:  # for example, the first trial finds that the metric is unknown
        release_folder(sweep)
        raise


def numbered_results(sweep: Sweep, only: int | None) -> list[Result]:
    """Trains the trials of a random or grid search, or the trial `only`, and returns the results of all that ended."""
    points = grid_points(sweep.search) if sweep.sampler == 'grid' else None
    results = []
    for number in range(sweep.trials):
        point = points[number] if points else random_point(sweep.search, number)
        if only is None or number == only:
            results.append(run_trial(sweep, number, point))
        elif known := read_trial(sweep, number):
            results.append(known)
    return results


def read_results(sweep: Sweep) -> list[Result]:
    """Returns the results of the trials that have ended, also of failed trials, and changes no file.

    Raises:
        InputError: the folder has no sweep or another sweep, or a result cannot be read.
    """
    if not (sweep.workdir / SWEEP_PLAN).exists():
        raise InputError(f'{sweep.workdir}: no sweep there ({SWEEP_PLAN} is missing)')
    check_same_sweep(sweep)
    found = [stored_result(sweep, number) for number in range(sweep.trials)]
    return [result for result in found if result is not None]


def claim_folder(sweep: Sweep) -> None:
    """Writes the sweep's plan into its folder.

    Raises:
        InputError: the folder belongs to another sweep, or contains something other than a sweep.
    """
    check_folder_kind(sweep.workdir, SWEEP)
    path, plan = sweep.workdir / SWEEP_PLAN, json.loads(json.dumps(sweep.plan()))
    if path.exists() and any(sweep.workdir.glob(f'trial_*/seed_*/{CONFIG}')):
        check_same_sweep(sweep)
        return
    if path.exists() and read_json_file(path) != plan:  # a corrected command replaces a sweep that has trained nothing
        (sweep.workdir / HISTORY).unlink(missing_ok=True)
    write_atomically(path, json.dumps(plan, indent=1) + '\n')


def release_folder(sweep: Sweep) -> None:
    """Removes the sweep's plan and history, and then an empty folder; does nothing if there is a trial's folder."""
    if not any(sweep.workdir.glob('trial_*')):
        for name in (SWEEP_PLAN, HISTORY):
            (sweep.workdir / name).unlink(missing_ok=True)
        if not any(sweep.workdir.iterdir()):
            sweep.workdir.rmdir()


def check_same_sweep(sweep: Sweep) -> None:
    """Raises InputError if the plan in the folder cannot be read, or is another sweep's."""
    path, plan = sweep.workdir / SWEEP_PLAN, json.loads(json.dumps(sweep.plan()))
    try:
        before = read_json_file(path)
    except (OSError, ValueError) as error:
        raise InputError(f'{path}: cannot be read ({one_line(error)})') from None
    old, new = flatten(before), flatten(plan)
    if changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        name = changed[0]
        raise InputError(
            f'{sweep.workdir} has a sweep with {name} {old.get(name)!r}, now {new.get(name)!r}; name a new --workdir'
        )


def run_trial(sweep: Sweep, number: int, fields: Fields) -> Result:
    """Trains a trial with all seeds, unless it is finished, and returns its result.

    If a run fails, the result contains the error.

    Raises:
        InputError: the evaluations do not compute the metric.
        RunStopped: a stop signal ended the run.
    """
    if known := read_trial(sweep, number):
        return known
    result: Result = {'number': number, 'fields': fields}
    print(f'trial {number}: {", ".join(f"{name}={value}" for name, value in fields.items())}', flush=True)
    try:
        summary = train_seeds(trial_values(sweep, fields), sweep.folder(number), sweep.seeds)
    except (RunStopped, KeyboardInterrupt):
        raise
    except Exception as error:  # after any error in one trial, the other trials are still trained
        if isinstance(error, InputError) and 'checkpoint.best_metric' in str(error):
            raise InputError(f'--metric is {sweep.metric}: {error}') from None  # all trials would fail alike
        show_error(RunError(f'trial {number}: {one_line(error)}'))
        result['error'] = f'{type(error).__name__}: {one_line(error)}'
    else:
        value = summary['mean'].get(sweep.metric, math.nan)
        outcome = {'value': value, **summary} if math.isfinite(value) else {'error': f'{sweep.metric} is {value}'}
        result |= outcome
    write_atomically(sweep.result_path(number), json.dumps(result, indent=1) + '\n')
    return result


def trial_values(sweep: Sweep, fields: Fields) -> dict[str, Any]:
    """Returns the config values of a trial; its best checkpoint is the best by the sweep's metric."""
    values = copy.deepcopy(dict(sweep.values))
    for name, value in fields.items():
        group, _, field = name.partition('.')
        values.setdefault(group, {})[field] = value
    values.setdefault('checkpoint', {}).update(best_metric=sweep.metric, best_mode=sweep.mode)
    return values


def read_trial(sweep: Sweep, number: int) -> Result | None:
    """Returns the result of a successful trial; None if the trial failed or is not finished, so it is trained again."""
    found = stored_result(sweep, number)
    return found if found is not None and 'value' in found else None


def stored_result(sweep: Sweep, number: int) -> Result | None:
    """Returns the result of a successful or failed trial; None if the trial has not ended."""
    path = sweep.result_path(number)
    try:
        found = read_json_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f'{path}: cannot be read ({one_line(error)}); delete the file') from None
    return found if isinstance(found, dict) and ('value' in found or 'error' in found) else None


def tpe_results(sweep: Sweep) -> Iterator[Result]:
    """Trains trials whose fields Optuna's TPE sampler chooses, and yields their results in order.

    The sampler's random numbers depend only on the trial's number, so a resumed sweep equals an unbroken one.
    """
    optuna = import_optuna()
    backend = optuna.storages.journal.JournalFileBackend(str(sweep.workdir / HISTORY))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name='sweep',
        direction={'min': 'minimize', 'max': 'maximize'}[sweep.mode],
        load_if_exists=True,
    )
    for number in range(sweep.trials):
        if number < len(study.trials):
            # A process that was killed while Optuna drew the values left a trial with only some of them.
            drawn = study.trials[number].params
            known = [field for field in sweep.search if field.name in drawn]
            fields = random_point(sweep.search, number)
            fields |= suggested_point(known, optuna.trial.FixedTrial(drawn))
        else:
            study.sampler = optuna.samplers.TPESampler(seed=number)
            fields = suggested_point(sweep.search, study.ask())
        result = run_trial(sweep, number, fields)
        # Optuna's trials cannot be told twice, so a failed trial stays open: it may succeed when the sweep is resumed.
        if 'value' in result and not study.trials[number].state.is_finished():
            study.tell(number, result['value'])
        yield result


def import_optuna() -> Any:
    """Returns the module optuna, which logs warnings only; raises MissingExtraError if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise missing_extra_error('--sampler tpe', 'sweep', error) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
