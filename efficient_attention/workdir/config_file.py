"""Writes `config.json` when a run claims a workdir, and compares it with the new config when the run resumes."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from efficient_attention.atomic_files import write_atomically, write_failed_error
from efficient_attention.config.dict_conversion import from_dict, to_dict
from efficient_attention.config.field_metadata import CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, marked_fields
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.config.optimizer import SCHEDULES_WITH_AN_END
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.fingerprint import ADVICE, compare_fingerprints, different_fields

CONFIG = 'config.json'
# Deleting config.json is safe, because a resumed run is also compared with the config in its checkpoints.
REWRITTEN = 'delete the file and repeat the training command, which writes it again'
SMALL = 'efficient_attention'  # value of `model_type` in the config.json of compact exports (interop/compact_import.py)
READERS = 'such folders are read by `efficient-attention predict`, from text to text by `translate`'


def marked_run_fields(mark: str) -> tuple[str, ...]:
    """Returns the config fields that carry a mark, such as CHANGEABLE, as name patterns for `compare_fingerprints`."""
    return marked_fields(RunConfig, mark, 'config.')


def claim_workdir(workdir: Path, config: RunConfig, *, has_checkpoint: bool = True) -> None:
    """Writes the complete config of a run into its workdir. If the workdir has a checkpoint, it first checks that the
    saved config is the same.

    Without a checkpoint the existing config is overwritten. With a checkpoint the configs must be equal, except for
    fields that may differ (`changeable_fields`), which get their new values. A larger `train.steps` is thus saved at
    once. If the run then ends before its first new step, repeat the command with the larger number.

    Raises:
        InputError: the workdir belongs to a run with another config (names the first field that differs).
        RunError, InputError: the file cannot be written.
    """
    if has_checkpoint:
        check_saved_config(workdir, config)
    if jax.process_index() > 0:
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed_error(workdir, error) from None
    write_atomically(workdir / CONFIG, json.dumps(to_dict(config), indent=2) + '\n')


def check_saved_config(workdir: Path, config: RunConfig) -> None:
    """Raises InputError if a config differs from the config saved in the workdir, except in fields that a resumed run
    may change.
    """
    if not (workdir / CONFIG).exists():
        return
    saved = {'config': to_dict(read_config(workdir))}
    compare_fingerprints(
        saved,
        {'config': to_dict(config)},
        where=str(workdir),
        changeable=changeable_fields(saved, config),
        advice=more_steps_advice(workdir, config) if can_extend_without_decay(saved, config) else ADVICE,
    )


def changeable_fields(saved: Mapping[str, Any], config: RunConfig) -> tuple[str, ...]:
    """Returns the config fields that a resumed run may change, as name patterns for `compare_fingerprints`.

    `train.steps` may grow if the new config's schedule has no end ('constant', 'rsqrt'); the same command may switch to
    such a schedule. Past steps keep their learning rates, later steps use the new schedule. If the schedule stays the
    same, the result equals, bit for bit, the longer run without a break. A pruning schedule depends on the length of
    the run, so a run with such a schedule cannot get more steps. The tokenizer file of a fine-tuning run, which may
    belong to its teacher, may have moved: the digest of its content is compared separately.

    Args:
        saved: the fingerprint of a checkpoint or workdir; {} if there is none.
        config: the config of the resumed run.
    """
    has_end = config.optimizer.schedule in SCHEDULES_WITH_AN_END
    always = marked_run_fields(CHANGEABLE) + (('config.data.tokenizer',) if config.task == 'fine_tuning' else ())
    is_fixed = has_end or config.prune.has_schedule or not has_more_steps(saved, config)
    return always if is_fixed else always + marked_run_fields(CHANGEABLE_WITH_MORE_STEPS)


def has_more_steps(saved: Mapping[str, Any], config: RunConfig) -> bool:
    """Returns whether a run has more training steps than its saved config."""
    return 'config' in saved and config.train.steps > saved['config']['train']['steps']


def can_extend_without_decay(saved: Mapping[str, Any], config: RunConfig) -> bool:
    """Returns whether a resumed run asks for more training steps, and only the fixed end of its learning-rate schedule
    forbids them.
    """
    may_grow = marked_run_fields(CHANGEABLE) + marked_run_fields(CHANGEABLE_WITH_MORE_STEPS)
    if config.prune.has_schedule:
        return False
    return has_more_steps(saved, config) and not different_fields(saved, {'config': to_dict(config)}, may_grow)


def more_steps_advice(workdir: Path, config: RunConfig) -> str:
    """Returns advice for a run that resumes with more steps, though its learning rate decays until its last step."""
    ways = (
        f'{ADVICE}; to train on, add --config.optimizer.schedule=constant and the --config.optimizer.learning_rate to '
        'go on with'
    )
    if config.task == 'language_modelling':  # A new run cannot start from a language model's checkpoint.
        return ways
    return f'{ways}, or start a new run from it: a new --workdir with --config.train.start_from={workdir}'


def more_steps_note(saved: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Returns a list with one note if a run resumes with more training steps than its saved config; otherwise []."""
    if not has_more_steps(saved, config):
        return []
    steps, optimizer = saved['config']['train']['steps'], config.optimizer
    return [
        f'train.steps grows from {steps:,} to {config.train.steps:,}; from here on the learning rate follows the '
        f'schedule {optimizer.schedule!r} with peak {optimizer.learning_rate:g}'
    ]


def with_new_field_defaults(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint's fingerprint, where config fields that are newer than the checkpoint have their defaults.

    The default of a new field is what the code did before the field existed, so that such a run may resume.
    """
    complete = {'config': to_dict(from_dict(fingerprint['config'], RunConfig))} if 'config' in fingerprint else {}
    return {**fingerprint, **complete}


def check_is_folder(workdir: Path) -> None:
    """Raises InputError if a workdir, or one of its parent folders, is a file."""
    for path in (workdir, *workdir.parents):
        # For a name that is too long, `Path.is_file` would raise an error, but `os.path.isfile` does not.
        if os.path.isfile(path):
            raise InputError(f'{path} is a file, and a workdir is a folder; name another --workdir')


def is_hub_name(path: Path) -> bool:
    """Returns whether a path that does not exist looks like the name of a model on a hub, as in 'google/mt5-small'."""
    is_name = re.fullmatch(r'\w[\w.-]*(/\w[\w.-]*)?', str(path))
    return bool(is_name) and not path.exists() and (path.parent == Path() or not path.parent.exists())


def check_config_not_foreign(workdir: Path) -> None:
    """Raises InputError if the folder has a config.json that no training run wrote, because a new run would overwrite
    it.
    """
    path = workdir / CONFIG
    try:
        values = read_json_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    except ValueError as error:
        raise InputError(f'{path}: not JSON ({error}); {REWRITTEN}') from None
    if not (isinstance(values, dict) and 'task' in values):
        fault = f'{path} is no config of a run that `train` wrote, and training would overwrite it'
        raise InputError(f'{fault}; name a new --workdir (train.start_from reads a checkpoint)')


def read_config(workdir: Path) -> RunConfig:
    """Returns the config of the run in a workdir, read from its config.json.

    Raises:
        InputError: there is no config.json, or it cannot be read, is damaged, or belongs to another version.
    """
    check_is_folder(workdir)
    path = workdir / CONFIG
    try:
        values = read_json_file(path)
    except FileNotFoundError:
        if is_hub_name(workdir):
            advice = 'names of a hub are not downloaded: give the folder of a run'
            raise InputError(f'{workdir} is no folder; {advice}') from None
        raise InputError(f'{workdir}: no run there ({CONFIG} is missing)') from None
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    except ValueError as error:
        raise InputError(f'{path}: not JSON ({error}); {REWRITTEN}') from None
    if isinstance(values, dict) and 'model_type' in values and 'task' not in values:
        kind = 'the folder of a small model' if values['model_type'] == SMALL else 'a Hugging Face folder'
        raise InputError(f'{workdir} is {kind}, and no run that `train` wrote; {READERS}')
    try:
        return from_dict(values, RunConfig)
    except InputError as error:
        raise InputError(f'{path}: {error}') from None
