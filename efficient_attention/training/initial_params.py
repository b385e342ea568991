"""Makes the initial state of a new training run: freshly initialised, or with parameters loaded from an existing
checkpoint.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, require
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, TEXT_TO_TEXT
from efficient_attention.interop.encoder_adaptation import extend_positions, pick_layers
from efficient_attention.interop.pretrained import Pretrained, check_no_language_model, open_pretrained
from efficient_attention.interop.tensor_conversion import format_name_list
from efficient_attention.interop.tokenizer_files import check_same_vocabulary
from efficient_attention.models.sharding import path_name
from efficient_attention.pruning.pruner import Pruner, flatten_by_path
from efficient_attention.training.progress import show_long_activity
from efficient_attention.training.run import Run
from efficient_attention.training.start_fields import check_same_function
from efficient_attention.training.state import TrainState

# This matches the paths of output projections, and of embedding tables, which may also be output projections.
OUTPUTS = r'head/dense/|token/embedding$'
# The encoder's parameters must be in the checkpoint. A head that is missing or does not fit is freshly initialised.
MUST_START = 'encoder/'


def open_start_checkpoint(folder: str, layers: str = '') -> Pretrained:
    """Opens the checkpoint that `train.start_from` names, with only the layers that `train.start_layers` lists.

    Raises:
        InputError: the checkpoint cannot be opened, or the layers cannot be picked.
    """
    if ',' in folder and not Path(folder).exists():
        raise InputError(
            f'train.start_from is {folder!r} (in configs/distill it follows distill.teacher); of several models name '
            'the one to begin with'
        )
    with show_long_activity(f'verifying {folder}'):
        pretrained = open_pretrained(Path(folder))
    try:
        return pick_layers(pretrained, layers) if layers else pretrained
    except InputError as error:
        raise InputError(f'{error} (train.start_from is {folder})') from None


def check_start_kind(config: RunConfig, pretrained: Pretrained) -> None:
    """Raises InputError if only one of a run and the checkpoint that it starts from is a causal language model, or if
    their tokens are of different units.
    """
    start, is_decoder = Path(config.train.start_from), pretrained.problem == LANGUAGE_MODELLING
    if config.task != LANGUAGE_MODELLING or config.model.directions_apart:
        check_no_language_model(start, pretrained)
        return
    if not is_decoder:
        raise InputError(f'train.start_from {start} was trained for {pretrained.problem!r}; needed: a language model')
    theirs = pretrained.run.data.units if pretrained.run else 'tokenizer'
    if theirs != config.data.units:
        raise InputError(f'data.units is {config.data.units!r}; train.start_from {start} has {theirs!r}')
    if theirs in ('characters', 'words'):
        raise InputError(f'data.units is {theirs!r}; train.start_from needs units that no run learns from its own text')


def check_layer_count(layers: int, pretrained: Pretrained) -> None:
    """Raises InputError if `model.layers` differs from the number of layers that `train.start_layers` picks from the
    checkpoint.
    """
    allowed = f'{pretrained.model.layers}, as many as train.start_layers names'
    require(layers == pretrained.model.layers, 'model.layers', layers, allowed)


class InitialParams:
    """The source of a run's parameters at step 0. A checkpoint to start from is opened on first use, and only once."""

    def __init__(self, config: RunConfig, pretrained: Pretrained | None = None) -> None:
        """Stores the config, and the checkpoint of `train.start_from` if it is already open."""
        self.config, self._open = config, pretrained
        self._mask: Any = None

    @functools.cached_property
    def pretrained(self) -> Pretrained:
        """The opened checkpoint that `train.start_from` names.

        Raises:
            InputError: the checkpoint cannot be opened, or with the run's model its parameters do not fit or compute
                another function.
        """
        pretrained = self._open or open_start_checkpoint(self.config.train.start_from, self.config.train.start_layers)
        check_start_kind(self.config, pretrained)
        if self.config.train.start_layers:
            check_layer_count(self.config.model.layers, pretrained)
        check_same_function(Path(self.config.train.start_from), pretrained.model, self.config.model)
        return pretrained

    def load_pruning_mask(self, run: Run) -> None:
        """Loads the pruning mask from the model that `prune.mask_from` names, unless it is loaded or the config names
        none.

        Raises:
            InputError: no such model exists, or its layers differ from the run's layers.
        """
        where = Path(self.config.prune.mask_from)
        if run.pruner is None or not self.config.prune.mask_from or self._mask is not None:
            return
        try:
            params = open_pretrained(where).params()
        except InputError as error:
            raise InputError(f'prune.mask_from: {error}') from None
        self._mask = pruning_scores_of_nonzero_weights(run.pruner, where, params)

    def make_initial_state(self, run: Run) -> TrainState:
        """Returns the training state at step 0, created on the devices of the run.

        Raises:
            InputError: the checkpoint to start from does not fit the model, or has another tokenizer.
        """
        self.load_pruning_mask(run)
        state = with_pruning_scores(run.init_random_state(), self._mask)
        if not self.config.train.start_from or self.config.train.start_random:
            return state
        start, pretrained = Path(self.config.train.start_from), self.pretrained
        is_text_to_text = pretrained.problem == TEXT_TO_TEXT
        check_same_vocabulary(run.task.vocabulary, pretrained.tokenizer, start, is_text_to_text=is_text_to_text)
        if is_text_to_text:
            theirs = pretrained.target_tokenizer or pretrained.tokenizer
            check_same_vocabulary(run.task.target_vocabulary, theirs, start, is_text_to_text=True, is_target=True)
        if note := changed_attention_note(pretrained.model, self.config.model):
            logging.getLogger(__name__).warning('train.start_from %s: %s', start, note)
        if self.config.model.global_tokens and not pretrained.model.global_tokens:
            # The new projections for global tokens start as copies of the ordinary projections.
            pretrained = extend_positions(pretrained, global_tokens=self.config.model.global_tokens)
        params = pretrained.params()
        if not has_same_outputs(pretrained, self.config):
            # The checkpoint's head was trained for other labels, even if it has the same number of outputs.
            if params.pop('head', None) is not None:
                logging.getLogger(__name__).warning('%s: its head is for other labels and is not used', start)
        is_decoder = pretrained.problem == LANGUAGE_MODELLING
        params = params['decoder'] if is_decoder else params
        is_whole = is_decoder or self.config.task == TEXT_TO_TEXT
        return dataclasses.replace(state, params=load_matching_params(state.params, params, start, is_whole=is_whole))

    def activity(self) -> str:
        """Returns what `make_initial_state` does, in words, for a progress line."""
        start, has_start = self.config.train.start_from, not self.config.train.start_random
        return f'importing the parameters of {start}' if start and has_start else 'initialising the parameters'

    def origin(self) -> str:
        """Returns a short text that says where the run's initial parameters come from."""
        start, drawn = self.config.train.start_from, f'freshly initialised parameters (seed {self.config.train.seed})'
        if not start:
            return drawn
        if self.config.train.start_random:
            return f'{drawn}, sizes and tokenizer from {start}'
        return f'parameters from {self.pretrained.origin()}'


def changed_attention_note(theirs: ModelConfig, ours: ModelConfig) -> str:
    """Returns a warning if the run uses other attention mechanisms than those the checkpoint was trained with;
    otherwise ''.
    """
    before, after = theirs.mechanisms, ours.mechanisms
    if all(before[layer % len(before)] == after[layer % len(after)] for layer in range(ours.layers)):
        return ''
    return f'its layers were trained with attention {theirs.attention!r}, and go on with {ours.attention!r}'


def with_pruning_scores(state: TrainState, mask: Any) -> TrainState:
    """Returns the training state with these pruning scores; the state is unchanged if `mask` is None."""
    if mask is None:
        return state
    scores = jax.tree.map(lambda leaf, one: jax.device_put(np.asarray(one), leaf.sharding), state.scores, mask)
    return dataclasses.replace(state, scores=scores)


def pruning_scores_of_nonzero_weights(pruner: Pruner, where: Path, params: Any) -> Any:
    """Returns pruning scores that keep every non-zero weight of a checkpoint and prune its zeros; raises InputError if
    shapes differ.
    """
    flat = flatten_by_path(params)
    for group in pruner.groups:
        for member in group.members:
            found = flat.get(member.path)
            if found is None or found.shape != member.shape:
                fault = 'is missing' if found is None else f'has the shape {found.shape}, not {member.shape}'
                raise InputError(f'prune.mask_from {where}: {member.path} {fault}')
    scores = pruner.fixed_scores(params)
    if all(bool(np.all(np.asarray(one) > 0.0)) for one in jax.tree.leaves(scores)):
        raise InputError(
            f'prune.mask_from {where} has no zeros in the kernels of prune.attention and prune.feed_forward'
        )
    return scores


def has_same_outputs(pretrained: Pretrained, config: RunConfig) -> bool:
    """Returns whether a checkpoint's head solves the same problem, with the same labels, as the run.

    Question answering and multi-hop answering count as the same problem.
    """
    problems = {pretrained.problem, config.examples.problem}
    is_one = len(problems) == 1 or problems == {'question_answering', 'multi_hop'}
    return is_one and pretrained.labels == config.examples.labels


def load_matching_params(params: Any, pretrained: Mapping[str, Any], where: Path, *, is_whole: bool = False) -> Any:
    """Returns the initial parameters of a run: the checkpoint's array where path and shape match, otherwise the freshly
    initialised array.

    Logs the names of arrays that stay freshly initialised.

    Args:
        params: freshly initialised parameters on their devices.
        pretrained: nested dicts of NumPy arrays.
        where: the checkpoint, for messages.
        is_whole: the checkpoint must have exactly these arrays; for models with a decoder, which have no new head.

    Raises:
        InputError: an array of the encoder is missing or has another shape; names it.
    """
    found = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(pretrained)}
    drawn: list[str] = []

    def start(path: Any, leaf: jax.Array) -> jax.Array:
        name = path_name(path)
        saved = found.pop(name, None)
        if saved is not None and saved.shape == leaf.shape:
            return jax.device_put(np.asarray(saved, leaf.dtype), leaf.sharding)
        if is_whole or name.startswith(MUST_START):
            fault = (
                f'is missing{output_layer_advice(name)}'
                if saved is None
                else f'has the shape {saved.shape}, not {leaf.shape}'
            )
            raise InputError(f'train.start_from {where}: {name} {fault}')
        drawn.append(name)
        return leaf

    started = jax.tree_util.tree_map_with_path(start, params)
    logger = logging.getLogger(__name__)
    if found and is_whole:
        name = min(found)
        raise InputError(f'train.start_from {where}: the model has no place for {name}{output_layer_advice(name)}')
    if drawn:
        usual = ' (usual for a new output layer)' if all(name.startswith('head/') for name in drawn) else ''
        fault = '%s lacks these parameters or shapes, so they are freshly initialised%s: %s'
        logger.warning(fault, where, usual, format_name_list(drawn))
    if found:
        logger.warning(
            '%s: not used, the model has no parameters of these names: %s', where, format_name_list(sorted(found))
        )
    return started


def output_layer_advice(name: str) -> str:
    """Returns advice for an error message about an output-layer array that only the checkpoint or only the model has;
    '' for other arrays.
    """
    fields = 'model.tied_output and model.shared_table'
    return f'; {fields} must be as the checkpoint has them' if re.search(OUTPUTS, name) else ''
