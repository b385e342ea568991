"""Stores the metrics of a run's evaluations with its checkpoints, for early stopping and for finding the best
checkpoint.

A checkpoint's record holds every evaluation up to its save. If a stop signal interrupts an evaluation, the resumed run
repeats it. The metrics of the repeated evaluation are saved in a file next to the step, with their own SHA-256.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.json_parsing import parse_json
from efficient_attention.errors import InputError
from efficient_attention.workdir.metrics import best_metric_value, check_metrics_line, metrics_line, read_metrics

# key in a checkpoint's JSON record; the value is a list of lines in the form of metrics.jsonl
EVALUATIONS = 'evaluations'
HELD_OUT = 'held_out'
# The file <step>.metrics.json holds the metrics of an evaluation that was made after the checkpoint was saved.
LATER = '.metrics.json'


def write_late_evaluation(folder: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Writes the metrics of an already saved checkpoint to a file next to it; raises RunError or InputError if that
    fails.
    """
    line = json.dumps(metrics_line(step, HELD_OUT, metrics))
    write_atomically(folder / f'{step}{LATER}', f'{line}\n{_line_sha256(line)}\n')


def read_late_evaluation(folder: Path, step: int) -> dict[str, Any]:
    """Returns the metrics that `write_late_evaluation` wrote for a checkpoint; {} if there are none or the file was
    changed since.
    """
    try:
        line, digest = (folder / f'{step}{LATER}').read_text(encoding='utf-8').splitlines()
        return check_metrics_line(parse_json(line)) if digest == _line_sha256(line) else {}
    except (OSError, ValueError):
        return {}


def read_evaluations_until_step(folder: Path, step: int, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the metrics of all evaluations up to a checkpoint, oldest first, as lines in the form of metrics.jsonl.

    Args:
        folder: the folder of all checkpoints.
        step: the step of the checkpoint.
        record: the JSON record of the checkpoint. An older record has no evaluations; then metrics.jsonl is read.

    Raises:
        InputError: the record's evaluations cannot be read.
    """
    if EVALUATIONS not in record:
        return [line for line in read_metrics(folder.parent) if line['split'] == HELD_OUT and line['step'] <= step]
    try:
        lines = [check_metrics_line(line) for line in record[EVALUATIONS]]
    except (ValueError, TypeError) as error:
        raise InputError(f'checkpoint {folder / str(step)}: its evaluations cannot be read ({error})') from None
    later = read_late_evaluation(folder, step)
    return [*lines, later] if later and all(line['step'] != step for line in lines) else lines


def pick_best_evaluation(lines: list[dict[str, Any]], config: CheckpointConfig) -> dict[str, float]:
    """Returns step and metrics of the best evaluation by `checkpoint.best_metric`, or of the last one if no metric is
    named; {} without evaluations.
    """
    sign = 1.0 if config.best_mode == 'max' else -1.0
    if not lines:
        return {}

    def rank(line: Mapping[str, Any]) -> float:
        value = best_metric_value(line, config.best_metric)
        return -math.inf if value is None or math.isnan(value) else sign * value

    # Of equally good evaluations the newest is chosen, because its checkpoint is kept.
    best = max(reversed(lines), key=rank) if config.best_metric else lines[-1]
    return {name: value for name, value in best.items() if name != 'split'}


def _line_sha256(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
