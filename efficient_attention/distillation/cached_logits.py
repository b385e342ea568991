"""Computes a teacher's logits for all training rows once, and stores them in a file that later distillation runs load.

The file name has two digests: of the teacher's parameters and of the training rows. Runs with other seeds,
temperatures or students use the same file.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils

from efficient_attention.atomic_files import atomic_file
from efficient_attention.config.run import RunConfig
from efficient_attention.data.examples.batches import Feature
from efficient_attention.distillation.teacher import LOGITS, Teacher
from efficient_attention.errors import InputError
from efficient_attention.host_memory import host_memory
from efficient_attention.inference.evaluate import Evaluation, keep_results_in_flight, to_host_arrays
from efficient_attention.models.device_memory import format_bytes
from efficient_attention.models.fine_tuning import NOWHERE
from efficient_attention.tasks.fine_tuning import FineTuningTask
from efficient_attention.tasks.task import HostBatch, Task

FOLDER = 'teachers'  # the logits files are in this subfolder of `distill.cache`
LARGEST_SHARE = 0.5  # the logits may use at most this share of the host's memory


@dataclasses.dataclass(frozen=True)
class CachedTeacherLogits:
    """The teacher logits of all training rows: a float32 array [rows, ...], indexed by the number of the training row
    and padded to the longest row.
    """

    logits: np.ndarray
    has_tokens: bool
    behind: float = 0.0  # logit value at padding tokens

    def add_teacher_logits(self, batch: HostBatch) -> HostBatch:
        """Returns the batch with the cached teacher logits of its rows added.

        Filler rows, which have weight 0, get the logits of any row.
        """
        rows = self.logits[batch['index']]
        if self.has_tokens:
            length = batch['tokens'].shape[-1]
            # The cached logits are shorter than the batch if a run with a smaller data.length computed them.
            missing = max(length - rows.shape[1], 0)
            rows = np.pad(rows[:, :length], ((0, 0), (0, missing), (0, 0)), constant_values=self.behind)
        return batch | {LOGITS: rows}


def can_cache_logits(teacher: Teacher, task: Task) -> bool:
    """Returns whether a distillation run can use cached teacher logits instead of running the teacher in each step.

    The run can use them if the loss needs only logits and the run reads each training row at least once on average.
    """
    distill, train = teacher.config.distill, teacher.config.train
    if not distill.keep_logits or distill.intermediate_loss_terms or not isinstance(task, FineTuningTask):
        return False
    return train.steps * train.batch_size >= len(task.encoded.train_rows)


def load_or_compute_logits(
    teacher: Teacher | None,
    task: Task,
    evaluation: Evaluation,
    say: Callable[[str], None] = lambda _: None,
    on_batch: Callable[[], None] = lambda: None,
) -> CachedTeacherLogits | None:
    """Returns the cached teacher logits: loaded from their file, or computed if the file is missing. Returns None if
    the run does not cache teacher logits.

    Args:
        teacher: the teacher of the run; None if the run has none.
        task: provides the training rows.
        evaluation: puts batches of training rows on the devices.
        say: is called with a log line before the computation.
        on_batch: is called before each batch.

    Raises:
        InputError: the logits need more memory than available, or their file is unreadable.
        RunError: the disk is full.
    """
    if teacher is None or not can_cache_logits(teacher, task):
        return None
    assert isinstance(task, FineTuningTask)
    config, features = teacher.config, task.encoded.train_rows
    name = f'{teacher.digest[:32]}-{rows_digest(features, config.examples.labels)[:32]}.npy'
    path = Path(config.distill.cache, FOLDER, name)
    if not all_processes_have_file(path):
        say(f'the teacher computes the logits of {len(features):,} training rows once, into {path}')
        write_logits_per_folder(path, compute_logits(teacher, task, evaluation, on_batch))
    try:
        return CachedTeacherLogits(np.load(path, mmap_mode='r'), has_token_logits(config), padding_logit(config))
    except (OSError, ValueError) as error:
        raise InputError(f'{path} cannot be read ({error}); delete it to compute it again') from None


def write_logits_per_folder(path: Path, logits: np.ndarray) -> None:
    """Writes the teacher logits to a file in process 0. Processes that do not see this file write their own copy.

    Raises:
        RunError: the disk is full.
    """
    if jax.process_index() == 0:
        write_logits(path, logits)
    # `all_processes_have_file` also makes all processes wait until process 0 has written the file.
    if not all_processes_have_file(path) and not path.is_file():
        write_logits(path, logits)


def write_logits(path: Path, logits: np.ndarray) -> None:
    """Writes the teacher logits to a file; raises RunError if the disk is full."""
    with atomic_file(path) as partial, partial.open('wb') as file:
        np.save(file, logits)


def compute_logits(
    teacher: Teacher, task: FineTuningTask, evaluation: Evaluation, on_batch: Callable[[], None]
) -> np.ndarray:
    """Computes the teacher's logits for all training rows, in one pass over the training set."""
    features = task.encoded.train_rows

    def results() -> Iterator[tuple[Array, Array]]:
        for batch in task.batches(features, task.eval_batch_size).evaluation_batches(
            jax.process_index(), jax.process_count()
        ):
            on_batch()
            rows = evaluation.task_batch(batch)
            yield teacher.teacher_outputs(rows)[LOGITS], rows['index']

    kept: np.ndarray | None = None
    for logits, index in map(to_host_arrays, keep_results_in_flight(results())):
        if kept is None:
            kept = allocate_logits(teacher.config, len(features), logits.shape)
        places = np.flatnonzero(index >= 0)
        kept[(index[places], *(slice(size) for size in logits.shape[1:]))] = logits[places]
    assert kept is not None
    return kept


def allocate_logits(config: RunConfig, rows: int, shape: Sequence[int]) -> np.ndarray:
    """Allocates a float32 array for the teacher logits of `rows` training rows, filled with the logit value of padding.

    `shape` is the shape of one batch of logits.

    Raises:
        InputError: the array needs too much of the host's memory.
    """
    row = (config.data.length, *shape[2:]) if has_token_logits(config) else tuple(shape[1:])
    needed = rows * int(np.prod(row)) * 4
    if needed > LARGEST_SHARE * host_memory():
        raise InputError(
            f'the teacher logits of {rows:,} rows take {format_bytes(needed)}; recompute them in each step with '
            '--config.distill.keep_logits=False'
        )
    # Rows are padded to data.length, because another batch may be longer than this one.
    return np.full((rows, *row), padding_logit(config), np.float32)


def has_token_logits(config: RunConfig) -> bool:
    """Returns whether the head of the model gives logits for each token, instead of one set per row."""
    return config.head.kind in ('token', 'span')


def padding_logit(config: RunConfig) -> float:
    """Returns the logit value that padding tokens get after the last token of a row."""
    return NOWHERE if config.head.kind == 'span' else 0.0


def rows_digest(features: Sequence[Feature], labels: tuple[str, ...]) -> str:
    """Returns one SHA-256 of all that the teacher reads in the training rows, and of the label names, in order."""
    total = hashlib.sha256(json.dumps(labels).encode())
    for feature in features:
        tokens = np.ascontiguousarray(feature['tokens'], np.int32)
        total.update(f'{tokens.shape}{tokens.dtype}'.encode())
        total.update(tokens.tobytes())
        total.update(np.ascontiguousarray(feature['token_types']).tobytes() if 'token_types' in feature else b'')
        total.update(
            b'global' + np.ascontiguousarray(feature['is_global']).tobytes() if 'is_global' in feature else b''
        )
    return total.hexdigest()


def all_processes_have_file(path: Path) -> bool:
    """Returns whether the file exists for every process of the run; processes on other hosts may not share the file
    system.
    """
    if jax.process_count() == 1:
        return path.is_file()
    return bool(multihost_utils.process_allgather(np.array(path.is_file())).all())
