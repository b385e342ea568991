"""Draws the attention weights of several mechanisms on the same random queries and keys, for comparison."""

from typing import Any

import jax
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from efficient_attention.attention.attend import attention_weights
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.commands.flags import define_length
from efficient_attention.errors import InputError, require

COLUMNS = 3  # maximum number of pictures side by side
MOST_TEXTS, LONGEST = 12, 512
WIDTH = 16  # width of the attention head
SCALE = 1.5  # standard deviation of queries and keys, so large that the mechanisms' weights differ visibly


def define_weight_flags(options: flags.FlagValues) -> None:
    """Defines the flags of the random queries and keys: their number, score and seed."""
    define_length(32, 'Number of queries and of keys.', options)
    what = 'Score of a query and a key. The score general is left out: with random queries it looks like dot.'
    flags.DEFINE_enum('score', 'dot', ('dot', 'additive'), what, flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Seed of the queries, the keys and the mechanisms.', flag_values=options)


def draw_attention_weights(texts: list[str], options: flags.FlagValues) -> Figure:
    """Returns a figure with a picture of each mechanism's attention weights, queries downwards; darker = more weight.

    Raises:
        InputError: there are too many mechanisms, one cannot be parsed, or the length is out of range.
    """
    require(len(texts) <= MOST_TEXTS, 'mechanisms', len(texts), f'at most {MOST_TEXTS}')
    require(1 <= options.length <= LONGEST, '--length', options.length, f'from 1 to {LONGEST}')
    require(0 <= options.seed < 2**31, '--seed', options.seed, 'in [0, 2**31)')
    mechanisms = [parse_mechanism(text) for text in texts]
    columns = min(COLUMNS, len(texts))
    rows = -(-len(texts) // columns)
    figure = Figure(figsize=(3.2 * columns, 3.4 * rows), layout='constrained')
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, text, mechanism in zip(grid, texts, mechanisms, strict=False):
        weights_LM = mechanism_weights(mechanism, text, options)
        has_negative = bool((weights_LM < 0.0).any())  # weights of Linformer and Nystrom can be negative
        colours, least = ('RdBu', -1.0) if has_negative else ('Blues', 0.0)
        axes.imshow(weights_LM, cmap=colours, vmin=least, vmax=1.0, interpolation='nearest')
        axes.set_title(text, family='monospace', size=8)
        axes.tick_params(labelsize=7, length=0)
        negative = f', {(weights_LM < 0.0).sum(1).mean():.1f} of them negative' if has_negative else ''
        print(f'{text}: {(weights_LM != 0.0).sum(1).mean():.1f} keys per query have nonzero weight{negative}')
    for axes in grid[len(texts) :]:
        axes.set_axis_off()
    figure.suptitle('weights of one head over random keys: queries downwards', size=9)
    return figure


def mechanism_weights(mechanism: Mechanism, text: str, options: flags.FlagValues) -> np.ndarray:
    """Returns the attention weights of a mechanism for random queries and keys, float32 [L, M].

    Raises:
        InputError: the mechanism cannot compute its weights.
    """
    shape = 1, options.length, 1, WIDTH

    @jax.jit
    def made(rng: jax.Array) -> jax.Array:
        rngs = jax.random.split(rng, 4)
        query, key = (SCALE * jax.random.normal(rng, shape) for rng in rngs[:2])
        given: dict[str, Any] = {'rng': rngs[2]} if mechanism.randomness.always else {}
        given['learned'] = draw_operands(mechanism, 1, WIDTH, jax.random.fold_in(rngs[3], 2)) or None
        if mechanism.requirements.centres:
            given['centres'] = jax.nn.sigmoid(2.0 * jax.random.normal(rngs[3], shape[:3]))
        if options.score == 'additive':
            given['additive'] = jax.random.normal(jax.random.fold_in(rngs[3], 1), (1, WIDTH))
        return attention_weights(query, query if mechanism.requirements.shared_qk else key, mechanism, **given)

    try:
        weights = made(jax.random.key(options.seed))
    except (ValueError, NotImplementedError) as error:
        raise InputError(f'{text}: {error}') from None
    return np.asarray(weights[0, 0])
