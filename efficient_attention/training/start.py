"""The parameters of a new run from those of a checkpoint that the world, or another run, already has."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from efficient_attention.data.tokenizer_loading import load_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.training.sharding import path_name

MUST_START = 'encoder/'  # what a checkpoint cannot lack; heads are drawn where it has none that fits
MOST_NAMED = 8  # parameters in a message


def started_params(params: Any, pretrained: Mapping[str, Any], where: Path) -> Any:
    """`params` with every array that `pretrained` has under the same path and in the same shape; logs what stays drawn.

    Args:
        params: drawn parameters on their devices.
        pretrained: nested dicts of NumPy arrays.
        where: the checkpoint, for messages.

    Raises:
        InputError: an array of the encoder is missing or has another shape; names it.
    """
    found = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(pretrained)}
    drawn: list[str] = []

    def start(path: Any, leaf: jax.Array) -> jax.Array:
        name = path_name(path)
        own = found.pop(name, None)
        if own is not None and own.shape == leaf.shape:
            return jax.device_put(np.asarray(own, leaf.dtype), leaf.sharding)
        if name.startswith(MUST_START):
            fault = 'is missing' if own is None else f'has the shape {own.shape}, not {leaf.shape}'
            raise InputError(f'train.start_from {where}: {name} {fault}')
        drawn.append(name)
        return leaf

    started = jax.tree_util.tree_map_with_path(start, params)
    logger = logging.getLogger(__name__)
    if drawn:
        logger.warning('%s has no such parameters, so they are drawn: %s', where, shortened(drawn))
    if found:
        logger.warning('%s: left out, the model has no place for them: %s', where, shortened(sorted(found)))
    return started


def check_same_vocabulary(ours: Mapping[str, int] | None, tokenizer: Path | None, where: Path) -> None:
    """Refuses a checkpoint whose ids stand for other pieces than the run's, whose rows would go to other tokens.

    Args:
        ours: the run's pieces and their ids, or None.
        tokenizer: the checkpoint's file, or None where it has none.
        where: the checkpoint, for the message.

    Raises:
        InputError: the ids differ; names the field with which they would not.
    """
    if ours is None or tokenizer is None:
        return
    theirs = load_tokenizer(tokenizer, lowercase=True).get_vocab()
    same = sum(ours.get(piece) == number for piece, number in theirs.items())
    if same < len(theirs):
        raise InputError(
            f'train.start_from {where}: {len(theirs) - same} of its {len(theirs)} ids stand for other pieces in the '
            f'tokenizer of this run; add --config.data.tokenizer={tokenizer}'
        )


def shortened(names: list[str]) -> str:
    """The names with commas, the rest of a long list as a number."""
    more = f' and {len(names) - MOST_NAMED} more' if len(names) > MOST_NAMED else ''
    return ', '.join(names[:MOST_NAMED]) + more
