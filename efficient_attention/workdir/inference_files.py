"""Checks that files which decide a model's answers, besides its parameters, are unchanged: config.json, tokenizer and
vocabulary.

A checkpoint's checksums cover its record. The record holds the config, in its fingerprint, and the SHA-256 of the other
files. Config and hashes are compared before parameters are loaded. The record of an older checkpoint has no hashes, so
its files are not compared.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.field_metadata import CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, TRAINING_ONLY
from efficient_attention.config.run import RunConfig
from efficient_attention.data.preparation.cache_folder import TARGET_TOKENIZER, TOKENIZER
from efficient_attention.data.text.text_units import CHARACTERS, WORDS
from efficient_attention.errors import InputError
from efficient_attention.workdir.config_file import CONFIG, marked_run_fields, with_new_field_defaults
from efficient_attention.workdir.fingerprint import compare_fingerprints

NAMES = (TOKENIZER, TARGET_TOKENIZER, CHARACTERS, WORDS)
FILES = 'files'  # key in a checkpoint's JSON record; the value is {file name: SHA-256}
FINGERPRINT = 'fingerprint'  # key of the run's fingerprint in a checkpoint's JSON record
# These config fields are paths of datasets. They may change, because they do not affect answers to new inputs.
# `eval.py` also calls `check_inference_files`, and may read other datasets than the training run.
PLACES = tuple(
    f'config.{name}'
    for name in (
        *('data.source', 'data.tokenizer'),
        *('examples.train', 'examples.dev', 'examples.test'),
        *('pairs.train', 'pairs.held_out', 'pairs.test'),
    )
)


def file_hashes(workdir: Path) -> dict[str, str]:
    """Returns {file name: SHA-256} of the tokenizer and vocabulary files in a workdir; raises InputError if a file
    cannot be read.
    """
    found: dict[str, str] = {}
    for path in (workdir / name for name in NAMES):
        try:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    return found


def describe_changed_file(workdir: Path, record: Mapping[str, Any]) -> str:
    """Returns a short text that says which file differs from its hash in a checkpoint's record; '' if none differs or
    the record has no hashes.
    """
    saved = record.get(FILES)
    if not isinstance(saved, dict):
        return ''
    found = file_hashes(workdir)
    for name in NAMES:
        if found.get(name) != saved.get(name):
            fault = 'is missing' if name not in found else 'is not what was written'
            return f'{name} {fault if name in saved else "is not of this run"}'
    return ''


def check_inference_files(workdir: Path, config: RunConfig, step: int, record: Mapping[str, Any]) -> None:
    """Raises InputError if a workdir's config, tokenizer or vocabulary differs from the one with which a checkpoint was
    saved.

    Raises:
        InputError: a difference may change answers; names the file, or the field of the config.
    """
    if changed := describe_changed_file(workdir, record):
        advice = f'restore the file of step {step}, or repeat the training command, which rewrites it'
        raise InputError(f'{workdir} is damaged: {changed}; {advice}')
    saved = record.get(FINGERPRINT, {})
    if 'config' in saved:
        marks = (CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, TRAINING_ONLY)
        compare_fingerprints(
            {'config': with_new_field_defaults(saved)['config']},
            {'config': to_dict(config)},
            where=f'{workdir}: {CONFIG} was changed: checkpoint step {step}',
            changeable=(*PLACES, *(field for mark in marks for field in marked_run_fields(mark))),
            advice='put the old value back',
        )
