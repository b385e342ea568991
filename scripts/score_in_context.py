"""Scores how well a language model learns from its context, on generated rows, each with a new key-value mapping.

    python scripts/score_in_context.py --workdir runs/in_context --keys 4,8,16,32 --output heads.png

Prints one line of JSON for each number of keys per row and each kind of keys: the accuracy of the predicted values by
the number of earlier occurrences of the key ('sights': 0, 1, 2, 3 or more), and by the number of pairs since the last
('pairs_since': from 1, 2, 4, 8, 16). Kinds of keys: 'trained' are keys of training; 'new' are words that training has
only as values; 'untrained' are ids that training never has. A last line, for rows with 8 keys, has the scores of the
attention heads, if there are any: 'previous_token' and 'two_back' are the mean weights on the tokens one and two places
before. 'induction' and 'after_value' are the mean weights that a key's second occurrence gives to the value after its
first occurrence, and to the token after this value. --output draws the head with the highest 'previous_token' and the
head with the highest 'induction'.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import json
import sys

import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from matplotlib.figure import Figure

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_checkpoint,
    define_integers,
    define_output,
    define_workdir,
)
from efficient_attention.data.sources.recall_rows import KEYS, RecallRows
from efficient_attention.errors import InputError, require
from efficient_attention.inference.in_context_scores import (
    KEY_KINDS,
    RecallTest,
    head_scores,
    predicted_values,
    recall_accuracy,
    recall_test,
)
from efficient_attention.inference.language_models import LanguageModel, open_language_model
from efficient_attention.models.layer_readings import self_attention_weights
from efficient_attention.processes.allocator import tune_allocator

KEYS_PER_ROW = (4, 8, 16, 32)
HEAD_KEYS = 8  # keys per row for the scores of heads
DRAWN_PAIRS = 16  # pairs of the row in the picture
MOST_PAIRS = 128  # the attention weights of all rows are kept in memory
DRAWN_SCORES = ('previous_token', 'induction')  # the head with the highest of each score is drawn


def main() -> None:
    """Reads the flags, prints the scores as JSON lines, and draws two heads if --output is given."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir',), options=options)
    check_flags(options)
    tune_allocator()
    model = open_language_model(options.workdir, checkpoint_from_flags(options))
    has_heads = model.config.cell == 'none'
    if options.output is not None and not has_heads:
        raise InputError(f'--output: the model has recurrent layers ({model.config.cell}), which have no heads to draw')
    for keys in options.keys:
        rows = RecallRows(options.rows, options.pairs, keys, keys, options.seed)
        for kind in KEY_KINDS:
            test = recall_test(model, rows, kind)
            if test is not None:
                scores = recall_accuracy(test, predicted_values(model, test.tokens_BL))
                print(json.dumps({'keys': keys, 'kind': kind, **scores}), flush=True)
    if has_heads:
        test = recall_test(model, RecallRows(options.rows, options.pairs, HEAD_KEYS, HEAD_KEYS, options.seed))
        assert test is not None
        heads = head_scores(model, test)
        print(json.dumps({'keys': HEAD_KEYS, 'heads': heads}))
        if options.output is not None:
            with atomic_file(options.output) as partial:
                draw_heads(model, test, heads).savefig(partial, format='png', dpi=150)


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_workdir('Workdir of a language model that was trained on generated rows.', options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_integers('keys', KEYS_PER_ROW, 'Numbers of keys per row', options)
    flags.DEFINE_integer('pairs', 32, 'Pairs per row.', flag_values=options)
    flags.DEFINE_integer('rows', 500, 'Rows per number of keys.', flag_values=options)
    flags.DEFINE_integer('seed', 1, "Seed of the rows; the config's training rows have seed 0.", flag_values=options)
    define_output('PNG file of a picture of two heads; by default none is written.', options=options)
    return options


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a flag is out of range."""
    for keys in options.keys:
        require(1 <= keys <= len(KEYS), '--keys', keys, f'from 1 to {len(KEYS)}')
    require(DRAWN_PAIRS <= options.pairs <= MOST_PAIRS, '--pairs', options.pairs, f'from {DRAWN_PAIRS} to {MOST_PAIRS}')
    require(options.rows >= 1, '--rows', options.rows, 'at least 1')
    require(options.seed >= 0, '--seed', options.seed, 'at least 0')


def draw_heads(model: LanguageModel, test: RecallTest, heads: dict[str, list[list[float]]]) -> Figure:
    """Returns a picture of two heads' attention weights over the first pairs of one row; each line is a query.

    The heads have the highest 'previous_token' and the highest 'induction'. On the right, orange circles mark
    the values after earlier occurrences of a key.
    """
    tokens_L = test.tokens_BL[0, : 2 * DRAWN_PAIRS]
    words = model.units.decode(tokens_L).split()
    tokens_BL = jnp.asarray(tokens_L)[None]
    weights_NBHLL = self_attention_weights(nnx.merge(model.graph, model.params), tokens_BL, jnp.ones_like(tokens_BL))
    figure = Figure(figsize=(13, 7), layout='constrained')
    grid = figure.subplots(1, 2)
    for axes, name in zip(grid, DRAWN_SCORES, strict=True):
        layer, head = np.unravel_index(np.argmax(heads[name]), np.shape(heads[name]))
        axes.imshow(np.asarray(weights_NBHLL[layer, 0, head]), cmap='Blues', vmin=0, vmax=1)
        axes.set_title(f'layer {layer + 1}, head {head + 1}: {name} {heads[name][layer][head]:.2f}', size=10)
        axes.set_xticks(range(len(words)), words, rotation=90, size=7)
        axes.set_yticks(range(len(words)), words, size=7)
        axes.tick_params(length=0)
    keys_P = tokens_L[::2]
    later, earlier = np.nonzero(np.tril(keys_P[:, None] == keys_P[None], -1))
    grid[1].scatter(2 * earlier + 1, 2 * later, s=40, facecolors='none', edgecolors='#ea580c', linewidths=0.9)
    figure.suptitle('attention weights in one test row; each line is a query, darker = more weight', size=10)
    return figure


if __name__ == '__main__':
    run_command(main)
