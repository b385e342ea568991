"""What lies in a workdir, and whether it belongs to the config given."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from efficient_attention.errors import InputError
from efficient_attention.training.config import RunConfig, from_dict, to_dict
from efficient_attention.training.fingerprint import compare_fingerprints
from efficient_attention.training.whole_file import write_whole

CONFIG = 'config.json'
# Fields that change neither the parameters nor the examples of any step, so a run may go on with other values.
CHANGEABLE = (
    'config.checkpoint.*',
    'config.eval.*',
    'config.mesh.*',
    'config.train.early_stop',
    'config.train.log_every_steps',
    'config.train.max_skipped_in_row',
    'config.data.cache',
    'config.data.processes',
    'config.data.workers',
    'config.data.prefetch',
    'config.model.remat',
    'config.model.scan_unroll',
    'config.model.attention_backend',
)


def claim_workdir(workdir: Path, config: RunConfig, *, has_checkpoint: bool = True) -> None:
    """Writes the complete config into a new workdir, or compares it with the one there.

    Without a checkpoint nothing there is worth keeping, and the config is replaced.

    Raises:
        InputError: the workdir belongs to a run with another config (names the first field that differs), or cannot be
            written.
    """
    path = workdir / CONFIG
    if path.exists() and has_checkpoint:
        saved = {'config': to_dict(read_config(workdir))}
        compare_fingerprints(saved, {'config': to_dict(config)}, where=str(workdir), changeable=CHANGEABLE)
    if jax.process_index() > 0:
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(to_dict(config), indent=2) + '\n')
    except OSError as error:
        raise InputError(f'{workdir}: cannot be written ({error.strerror})') from None


def with_new_fields(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's fingerprint, its config completed with the defaults of fields that were added since it was made.

    A new field's default is what the code did before, so such a run may go on.
    """
    complete = {'config': to_dict(from_dict(fingerprint['config']))} if 'config' in fingerprint else {}
    return {**fingerprint, **complete}


def read_config(workdir: Path) -> RunConfig:
    """The config of the run in `workdir`.

    Raises:
        InputError: there is no config.json, or it cannot be read, is damaged, or not of this version.
    """
    path = workdir / CONFIG
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f'{workdir}: no run there ({CONFIG} is missing)') from None
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    except ValueError as error:
        raise InputError(f'{path}: not JSON ({error})') from None
    try:
        return from_dict(values)
    except InputError as error:
        raise InputError(f'{path}: {error}') from None
