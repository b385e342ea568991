"""Compares a killed and resumed run with a run that was never killed: metrics, checkpoints, exported files."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from efficient_attention.models.sharding import path_name
from efficient_attention.workdir.checkpoint_reader import RECORD, STATE, CheckpointReader
from efficient_attention.workdir.metrics import SPEEDS, parse_metrics_log, read_metrics

METRICS = 'metrics'  # key of the metrics in the JSON record of a checkpoint
SUMMARY = 'seeds.json'  # file with the results of runs with several seeds


def folder_differences(found: Path, expected: Path, *, was_stopped: bool = False) -> list[str]:
    """Compares two folders of runs or exports; returns one line per difference, [] if there is none.

    Runs are compared by their metrics without speeds, and by every array of every checkpoint, bit by bit. Exports are
    compared file by file, byte by byte.

    Args:
        found: the folder to check.
        expected: the folder of the unbroken run.
        was_stopped: whether signals stopped the run. A checkpoint saved during an evaluation lacks the metrics of the
            evaluation, so its metrics are not compared.
    """
    runs = [path.parent for path in expected.rglob('metrics.jsonl')]
    if not runs:
        return file_differences(found, expected)
    lines = [line for run in runs for line in run_differences(found / run.relative_to(expected), run, was_stopped)]
    if (expected / SUMMARY).exists() and (found / SUMMARY).read_text() != (expected / SUMMARY).read_text():
        lines.append(f'{found / SUMMARY} differs')
    return lines


def run_differences(found: Path, expected: Path, was_stopped: bool) -> list[str]:
    """Compares two workdirs, by metrics, checkpoints and arrays; returns one line per difference."""
    lines = metrics_differences(found, expected)
    steps, expected_steps = CheckpointReader(found).complete_steps(), CheckpointReader(expected).complete_steps()
    if steps != expected_steps:
        return [*lines, f'{found}: checkpoints of the steps {steps}, expected {expected_steps}']
    for step in steps:
        names = [name for name in array_differences(found, expected, step) if not (was_stopped and name == METRICS)]
        lines += [f'{found}: checkpoint {step}: {name}' for name in names]
    return lines


def metrics_differences(found: Path, expected: Path) -> list[str]:
    """Compares the metrics.jsonl of two runs, without speeds; returns missing, duplicate and unexpected lines."""
    ours, theirs = metrics_without_speeds(found), metrics_without_speeds(expected)
    lines = [f'{found}: metrics line {line} is not expected' for line in ours if line not in theirs]
    lines += [f'{found}: metrics line {line} is missing' for line in theirs if line not in ours]
    # `parse_metrics_log` drops unusable lines, such as duplicates; each dropped line is a difference too.
    lines += [f'{found}: metrics {dropped}' for dropped in parse_metrics_log(found).dropped]
    if not lines and ours != theirs:
        lines = [f'{found}: {len(ours)} metrics lines, expected {len(theirs)} in another order']
    return lines


def metrics_without_speeds(workdir: Path) -> list[str]:
    """Returns the lines of a run's metrics without speeds, as JSON text, so that NaN equals NaN."""
    lines = read_metrics(workdir)
    return [json.dumps({name: value for name, value in line.items() if name not in SPEEDS}) for line in lines]


def array_differences(found: Path, expected: Path, step: int) -> list[str]:
    """Compares a checkpoint of two runs; returns the names of differing arrays, and 'metrics' if its metrics differ."""
    ours, theirs = read_checkpoint_arrays(found, step), read_checkpoint_arrays(expected, step)
    names = sorted(set(ours) ^ set(theirs))
    return names + [name for name in ours if name in theirs and not is_bitwise_equal(ours[name], theirs[name])]


def read_checkpoint_arrays(workdir: Path, step: int) -> dict[str, Any]:
    """Reads a checkpoint; returns {name: array} of its training state, and its metrics as text."""
    folder = CheckpointReader(workdir).folder / str(step)
    handler = ocp.PyTreeCheckpointHandler()
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(folder / STATE).tree)
    with ocp.Checkpointer(handler) as checkpointer:
        state = checkpointer.restore(folder / STATE, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    record = json.loads((folder / RECORD / 'metadata').read_text(encoding='utf-8'))
    arrays = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    return {**arrays, METRICS: json.dumps(record['metrics'])}


def is_bitwise_equal(ours: Any, theirs: Any) -> bool:
    """Returns whether two arrays have the same shape, dtype and bits, or whether two texts are equal."""
    if not isinstance(ours, np.ndarray):
        return ours == theirs
    return (ours.shape, ours.dtype, ours.tobytes()) == (theirs.shape, theirs.dtype, theirs.tobytes())


def file_differences(found: Path, expected: Path) -> list[str]:
    """Compares two folders byte by byte; returns one line per missing, additional or different file."""
    ours, theirs = read_files_below(found), read_files_below(expected)
    lines = [f'{found}: {name} is not expected' for name in sorted(set(ours) - set(theirs))]
    lines += [f'{found}: {name} is missing' for name in sorted(set(theirs) - set(ours))]
    return lines + [f'{found}: {name} differs' for name in ours if name in theirs and ours[name] != theirs[name]]


def read_files_below(folder: Path) -> dict[str, bytes]:
    """Reads all files of a folder and its subfolders; returns {path relative to the folder: content}."""
    files = (path for path in folder.rglob('*') if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
