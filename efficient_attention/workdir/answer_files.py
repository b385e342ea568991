"""The files that decide a run's answers besides its parameters: config.json, and its tokenizer or vocabulary.

The seal of a checkpoint covers its record. The record has the config, in its fingerprint, and the SHA-256 of the other
files. Both are compared before parameters are read. Older checkpoints have no hashes; for them no file is compared.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.fields import CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, TRAINING_ONLY
from efficient_attention.config.nested_dicts import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.preparation.cache_folder import TARGET_TOKENIZER, TOKENIZER
from efficient_attention.data.text.units import CHARACTERS, WORDS
from efficient_attention.errors import InputError
from efficient_attention.workdir.config_file import CONFIG, fields_of_a_run, with_new_fields
from efficient_attention.workdir.fingerprint import compare_fingerprints

NAMES = (TOKENIZER, TARGET_TOKENIZER, CHARACTERS, WORDS)
FILES = 'files'  # of a record: {name: SHA-256}
FINGERPRINT = 'fingerprint'  # of a record
# Paths of data, on which answers to new inputs do not depend; `eval.py` compares them, too.
PLACES = tuple(
    f'config.{name}'
    for name in (
        *('data.source', 'data.tokenizer'),
        *('examples.train', 'examples.dev', 'examples.test'),
        *('pairs.train', 'pairs.held_out', 'pairs.test'),
    )
)


def file_hashes(workdir: Path) -> dict[str, str]:
    """The SHA-256 of each file of `NAMES` that is there; raises InputError where one cannot be read."""
    found: dict[str, str] = {}
    for path in (workdir / name for name in NAMES):
        try:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    return found


def changed_file(workdir: Path, record: Mapping[str, Any]) -> str:
    """What differs from the hashes in a checkpoint's record, in a few words; '' where nothing does or it has none."""
    saved = record.get(FILES)
    if not isinstance(saved, dict):
        return ''
    found = file_hashes(workdir)
    for name in NAMES:
        if found.get(name) != saved.get(name):
            fault = 'is missing' if name not in found else 'is not what was written'
            return f'{name} {fault if name in saved else "is not of this run"}'
    return ''


def check_answers(workdir: Path, config: RunConfig, step: int, record: Mapping[str, Any]) -> None:
    """Compares a workdir's files and its config with what a checkpoint was saved with.

    Raises:
        InputError: a difference may change answers; names the file, or the field of the config.
    """
    if changed := changed_file(workdir, record):
        advice = f'bring the file of step {step} back, or repeat the training command, which writes it anew'
        raise InputError(f'{workdir} is damaged: {changed}; {advice}')
    saved = record.get(FINGERPRINT, {})
    if 'config' in saved:
        marks = (CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, TRAINING_ONLY)
        compare_fingerprints(
            {'config': with_new_fields(saved)['config']},
            {'config': to_dict(config)},
            where=f'{workdir}: {CONFIG} was changed: checkpoint step {step}',
            changeable=(*PLACES, *(field for mark in marks for field in fields_of_a_run(mark))),
            advice='put the old value back',
        )
