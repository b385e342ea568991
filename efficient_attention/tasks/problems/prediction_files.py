"""Writes prediction files: GLUE submissions, and JSON lines for other data."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.data.examples.glue import DIAGNOSTIC, MISMATCHED
from efficient_attention.data.examples.labelled_text import LabelledText
from efficient_attention.errors import InputError


def submission_file_name(title: str, subset: str) -> str:
    """Returns the file name that GLUE's server expects for a subset of a task, such as 'MNLI-mm.tsv'."""
    if subset == DIAGNOSTIC:
        return 'AX.tsv'
    if title == 'MNLI':
        return 'MNLI-mm.tsv' if subset == MISMATCHED else 'MNLI-m.tsv'
    return f'{title}.tsv'


def write_glue_submissions(
    title: str, examples: Sequence[LabelledText], values: Sequence[str | None], folder: Path
) -> list[Path]:
    """Writes one GLUE submission file per subset of the test examples; returns the paths.

    Raises:
        InputError: an example has no prediction because it was left out as too long; the server expects all rows.
    """
    files: dict[str, list[str]] = {}
    for example, value in zip(examples, values, strict=True):
        if value is None:
            raise InputError(
                f"{example.file_and_line}: no prediction (examples.overlong 'skip'); a submission needs all rows"
            )
        files.setdefault(submission_file_name(title, example.subset), ['index\tprediction']).append(
            f'{example.id}\t{value}'
        )
    return [write_lines(lines, folder / name) for name, lines in files.items()]


def text_fields(example: LabelledText) -> dict[str, str]:
    """Returns the texts of an example as {'text': ..., 'text_pair': ...}; {} if it has token ids instead of texts."""
    return dict(zip(('text', 'text_pair'), example.texts, strict=False))


def write_prediction_json_lines(rows: Iterable[dict[str, Any]], split: str, folder: Path) -> Path:
    """Writes predictions as one JSON object per line; returns the path.

    The file is 'predictions.jsonl' for the split 'test', and '<split>_predictions.jsonl' for other splits.
    """
    name = 'predictions.jsonl' if split == 'test' else f'{split}_predictions.jsonl'
    return write_lines([json.dumps(row, ensure_ascii=False) for row in rows], folder / name)


def write_lines(lines: Sequence[str], path: Path) -> Path:
    """Writes lines of text into a file and creates its folder if needed; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')
    return path
