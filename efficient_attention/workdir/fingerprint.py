"""Compares the fingerprints of two runs: nested dicts of the config fields and hashes that decide a run's results."""

import fnmatch
import json
from collections.abc import Mapping
from typing import Any

from efficient_attention.config.dict_conversion import flatten
from efficient_attention.errors import InputError

TEACHER = 'teacher'  # key of the SHA-256 of a teacher's parameters, which is compared only when training resumes
ADVICE = 'name a new --workdir, or give the old value'


def compare_fingerprints(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    *,
    where: str,
    changeable: tuple[str, ...] = (),
    advice: str = ADVICE,
) -> None:
    """Raises InputError if a saved fingerprint differs from the current one. All fields are compared as JSON, except
    changeable ones.

    Args:
        saved: nested dict from the checkpoint, such as {'config': {...}, 'data': '<sha-256>'}.
        current: nested dict of the run that should resume.
        where: the owner of `saved`, for the message ('runs/x').
        changeable: fields that may differ, as shell patterns on dotted names ('config.train.*').
        advice: what the user can do about a difference.

    Raises:
        InputError: one line with the first differing field, both values, how many more differ, and the advice.
    """
    different = different_fields(saved, current, changeable)
    if not different:
        return
    old, new = flatten(saved), flatten(current)
    first, rest = different[0], different[1:4]
    more = f' (also different: {", ".join(rest)}{", ..." if len(different) > 4 else ""})' if rest else ''
    raise InputError(
        f'{where} was made with {first} = {_format_field(old, first)}, now it is '
        f'{_format_field(new, first)}{more}; {advice}'
    )


def different_fields(
    saved: Mapping[str, Any], current: Mapping[str, Any], changeable: tuple[str, ...] = ()
) -> list[str]:
    """Returns the dotted names of the fields that differ between two fingerprints, except fields that may change.

    Arguments are as in `compare_fingerprints`.
    """
    old, new = flatten(saved), flatten(current)
    names = [*new, *(name for name in old if name not in new)]
    return [
        name
        for name in names
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in changeable)
    ]


_ABSENT = object()  # This object differs from every value, even from None.


def _format_field(fields: Mapping[str, Any], name: str) -> str:
    return json.dumps(fields[name], ensure_ascii=False) if name in fields else 'absent'
