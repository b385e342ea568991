"""Logs samples of a model's outputs to `samples.jsonl` of a workdir, with one JSON object per evaluation.

A line is {"step": 500, "kind": "filled masks", "samples": [{"input": "...", "output": "...", "target": "..."}]}. As
`metrics.jsonl`, the file may be cut, edited or lost without any effect on training.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically, write_failed_error
from efficient_attention.config.json_parsing import parse_json
from efficient_attention.errors import InputError, is_whole_number

FILE_NAME = 'samples.jsonl'
PARTS = ('input', 'output', 'target')  # texts of a sample; a sample may lack some of them

Sample = Mapping[str, str]


def read_samples(workdir: Path) -> list[dict[str, Any]]:
    """Returns the last line of each step in `samples.jsonl`, in the order of the steps.

    Unreadable lines are left out.

    Raises:
        InputError: the file cannot be read.
    """
    path = workdir / FILE_NAME
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    found = {line['step']: line for line in map(_parse_line, content.split(b'\n')) if line}
    return [found[step] for step in sorted(found)]


def remove_samples_after(workdir: Path, step: int) -> None:
    """Removes the samples of steps after `step`, which a resumed run writes again.

    Raises:
        RunError, InputError: the file cannot be read or written.
    """
    lines = read_samples(workdir)
    kept = [line for line in lines if line['step'] <= step]
    if (workdir / FILE_NAME).exists():
        write_atomically(workdir / FILE_NAME, ''.join(json.dumps(line) + '\n' for line in kept))


def append_samples(workdir: Path, step: int, kind: str, samples: Sequence[Sample]) -> None:
    """Appends the samples of one evaluation.

    Args:
        workdir: folder of the run.
        step: updates made.
        kind: a name for the samples, such as 'filled masks'.
        samples: texts by the names in PARTS.

    Raises:
        RunError, InputError: the file cannot be written.
    """
    path = workdir / FILE_NAME
    line = json.dumps({'step': step, 'kind': kind, 'samples': list(map(dict, samples))})
    try:
        with path.open('ab') as file:
            file.write(line.encode() + b'\n')
    except OSError as error:
        raise write_failed_error(path, error) from None


def _parse_line(text: bytes) -> dict[str, Any] | None:
    """Returns one line of the file; None if it is not a valid line."""
    try:
        line = parse_json(text)
    except ValueError:
        return None
    if not (isinstance(line, dict) and is_whole_number(line.get('step')) and isinstance(line.get('kind'), str)):
        return None
    samples = line.get('samples')
    is_valid = isinstance(samples, list) and all(
        isinstance(one, dict) and all(name in PARTS and isinstance(text, str) for name, text in one.items())
        for one in samples
    )
    return line if is_valid else None
