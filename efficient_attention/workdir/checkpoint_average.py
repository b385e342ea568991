"""Averages the parameters of a run's last checkpoints, as Vaswani et al. 2017 do for evaluation (arXiv 1706.03762,
section 6.1).
"""

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.errors import InputError
from efficient_attention.workdir.checkpoint_reader import READ_ATTEMPTS, CheckpointReader, RestoredCheckpoint, Wanted
from efficient_attention.workdir.config_file import CONFIG, read_config
from efficient_attention.workdir.process_agreement import broadcast_from_process_0

# matches the text with which a user asks for a mean of checkpoints, such as 'average-5'
CHOICE = re.compile(r'average-([1-9]\d*)')
AVERAGED = 'averaged'  # key in the JSON record of an averaged checkpoint; the value lists the averaged steps
LOG = logging.getLogger(__name__)


class AverageChoice(NamedTuple):
    """A user's choice to average the parameters of the last checkpoints; `checkpoints` is their number."""

    checkpoints: int


def parse_checkpoint_choice(reader: CheckpointReader, choice: str, *, metric: str, mode: str) -> Wanted | AverageChoice:
    """Parses the checkpoint that a user asks for: 'average-5' is a mean of five checkpoints; other texts are parsed by
    `reader.parse_choice`.

    Raises:
        InputError: as `reader.parse_choice`, or the run keeps fewer checkpoints.
    """
    found = CHOICE.fullmatch(choice)
    if found is None:
        return reader.parse_choice(choice, metric=metric, mode=mode)
    last_complete_steps(reader, int(found[1]))
    return AverageChoice(int(found[1]))


def last_complete_steps(reader: CheckpointReader, count: int) -> list[int]:
    """Returns the newest `count` checkpoint steps that have checksums, in ascending order; raises InputError if the run
    keeps fewer.
    """
    steps = reader.complete_steps()[-newest_step_count(reader) :]
    # `existing_steps` raises an error if the run's checkpoints have been lost.
    if not steps and reader.existing_steps():
        raise InputError(f'there is no checkpoint in {reader.folder}')
    if len(steps) < count:
        raise InputError(
            f'the mean of {count} checkpoints needs as many; {reader.folder} keeps {len(steps)} '
            f'({", ".join(map(str, steps))}): train with checkpoint.keep of at least {count}'
        )
    return steps[-count:]


def newest_step_count(reader: CheckpointReader) -> int:
    """Returns how many of its newest checkpoints a run keeps (checkpoint.keep); 0 if its config is missing.

    The run may also keep older checkpoints, as the best ones (checkpoint.keep_best).
    """
    workdir = reader.folder.parent
    return read_config(workdir).checkpoint.keep if (workdir / CONFIG).exists() else 0


def restore_average(reader: CheckpointReader, abstract: Any, count: int) -> RestoredCheckpoint:
    """Returns the mean of the arrays in the last `count` checkpoints, together with the newest checkpoint's record.

    The checksums of each checkpoint are verified. Sums are float32; the mean has the dtype of the arrays. The steps are
    logged, and the record's 'averaged' lists them.

    Args:
        reader: the reader of the run's checkpoints.
        abstract: the abstract state as for `CheckpointReader.restore`, with only floating-point arrays.
        count: number of checkpoints.

    Raises:
        InputError: fewer checkpoints are kept, or one is damaged or has other arrays.
    """
    for _ in range(READ_ATTEMPTS - 1):
        steps = broadcast_from_process_0(lambda: last_complete_steps(reader, count))
        try:
            return mean_of_checkpoints(reader, abstract, steps)
        except InputError:
            # If a checkpoint is missing now, a trainer has removed it meanwhile; the next attempt chooses others.
            if set(steps) <= set(broadcast_from_process_0(reader.written_steps)):
                raise
    return mean_of_checkpoints(reader, abstract, broadcast_from_process_0(lambda: last_complete_steps(reader, count)))


def mean_of_checkpoints(reader: CheckpointReader, abstract: Any, steps: Sequence[int]) -> RestoredCheckpoint:
    """Loads the checkpoints of these steps and returns the mean of their arrays; raises InputError as `restore_average`
    does.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    add = jax.jit(lambda total, new: jax.tree.map(jnp.add, total, cast_to_float32(new)), out_shardings=shardings)
    divide = jax.jit(functools.partial(divide_by_count, abstract, len(steps)), out_shardings=shardings)
    total = jax.jit(cast_to_float32, out_shardings=shardings)(reader.restore(abstract, steps[0]).state)
    for step in steps[1:]:
        total = add(total, reader.restore(abstract, step).state)
    LOG.info('the parameters are the mean of the checkpoints of steps %s', ', '.join(map(str, steps)))
    return RestoredCheckpoint(steps[-1], divide(total), reader.read_record(steps[-1]) | {AVERAGED: list(steps)})


def cast_to_float32(tree: Any) -> Any:
    """Returns the tree with all arrays cast to float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def divide_by_count(abstract: Any, count: int, total: Any) -> Any:
    """Divides the sums of arrays by `count`, and casts each result to the dtype of the matching array in `abstract`."""

    def divided(like: jax.ShapeDtypeStruct, leaf: Array) -> Array:
        return (leaf / count).astype(like.dtype)

    return jax.tree.map(divided, abstract, total)
