"""Loads a run's model parameters from a checkpoint. If the run prunes, the pruning masks are applied to them."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.pruning.pruner import make_pruner
from efficient_attention.workdir.checkpoint_average import AverageChoice, restore_average
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, RestoredCheckpoint, Wanted
from efficient_attention.workdir.inference_files import check_inference_files
from efficient_attention.workdir.process_agreement import require_in_all_processes

PARAMS, SCORES = 'params', 'scores'  # names of fields in a saved training state


def restore_params(
    reader: CheckpointReader,
    config: RunConfig,
    abstract: Any,
    wanted: Wanted | AverageChoice,
    lay_out: Callable[[Any], Any],
) -> RestoredCheckpoint:
    """Loads the model parameters of one checkpoint, or the mean of several checkpoints, with the shardings of
    `abstract`.

    Args:
        reader: the reader of the run's checkpoints.
        config: the run's config.
        abstract: the parameters as `jax.ShapeDtypeStruct` with shardings.
        wanted: as for `CheckpointReader.restore`, or a mean.
        lay_out: adds shardings to the shapes of pruning scores, in a dict 'scores' as in the state.

    Raises:
        InputError: as `CheckpointReader.restore`. Also if the config or a file next to the checkpoints was changed
            since, or if a mean is requested for a run that prunes.
    """
    restored = _masked_params(reader, config, abstract, wanted, lay_out)
    look = functools.partial(check_inference_files, reader.folder.parent, config, restored.step, restored.record)
    require_in_all_processes(look)
    return restored


def _masked_params(
    reader: CheckpointReader,
    config: RunConfig,
    abstract: Any,
    wanted: Wanted | AverageChoice,
    lay_out: Callable[[Any], Any],
) -> RestoredCheckpoint:
    pruner = make_pruner(config.prune, abstract, head_width=config.model.head_width, steps=config.train.steps)
    if isinstance(wanted, AverageChoice):
        if pruner is not None:
            raise InputError(
                f'{reader.folder.parent}: the run prunes (prune.method {config.prune.method!r}), and the mean of '
                'checkpoints with other masks is not pruned; choose one checkpoint (--checkpoint)'
            )
        step, state, record = restore_average(reader, {PARAMS: abstract}, wanted.checkpoints)
        return RestoredCheckpoint(step, state[PARAMS], record)
    if pruner is None:
        step, state, record = reader.restore({PARAMS: abstract}, wanted)
        return RestoredCheckpoint(step, state[PARAMS], record)
    shapes = jax.eval_shape(pruner.initial_scores, jax.random.key(0))
    scores = {} if shapes is None else lay_out({SCORES: shapes})
    step, state, record = reader.restore({PARAMS: abstract} | scores, wanted)
    masked = jax.jit(pruner.pruned, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, abstract))
    return RestoredCheckpoint(step, masked(state[PARAMS], state.get(SCORES), step), record)
