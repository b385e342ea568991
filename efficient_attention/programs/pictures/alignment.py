"""Draws alignments: the cross-attention weights between the tokens of a source and of its generated translation."""

import numpy as np
from absl import flags
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from efficient_attention.commands.flags import checkpoint_from_flags, define_checkpoint, define_model
from efficient_attention.errors import InputError
from efficient_attention.inference.translate_file import log_truncations
from efficient_attention.inference.translator import Translation, open_translator

TITLE_INCHES = 6.0  # minimum width of the figure, so that its title fits
COLUMNS = 3  # maximum number of pictures side by side
MOST_TEXTS = 12
INCHES_A_PIECE = 0.24


def define_alignment_flags(options: flags.FlagValues) -> None:
    """Defines the flags that choose the model and its beam search."""
    define_model(options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    flags.DEFINE_string(
        'prefix', None, "Text put before each source; by default the run's prefix.", flag_values=options
    )
    flags.DEFINE_integer('beams', 5, 'Beams of the search; 1 = greedy.', flag_values=options)


def draw_translation_alignments(texts: list[str], options: flags.FlagValues) -> Figure:
    """Translates texts, prints the translations, and returns a figure with the alignment of each translation.

    Raises:
        InputError: a text is empty, there are too many texts, or the model cannot be used.
    """
    if not all(text.strip() for text in texts):
        raise InputError('a text is empty')
    if len(texts) > MOST_TEXTS:
        raise InputError(f'{len(texts)} texts; one picture shows {MOST_TEXTS} at most')
    decoding = {'beams': options.beams, 'batch_size': len(texts)}
    translator = open_translator(
        options.model, checkpoint=checkpoint_from_flags(options), decoding=decoding, prefix=options.prefix
    )
    found = [best[0] for best in translator(texts, alignments=True) if best]
    log_truncations(translator)
    for one in found:
        print(one.text)
    return draw_alignments(found)


def draw_alignments(found: list[Translation]) -> Figure:
    """Returns a figure with a picture per translation: source tokens to the right, target tokens downwards.

    Darker squares mean more weight.

    Raises:
        InputError: there is no translation.
    """
    if not found:
        raise InputError('the model generated no text, so there is nothing to draw')
    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    width, height = (
        max(len(side) for side in sides) for sides in zip(*map(source_and_target_pieces, found), strict=True)
    )
    size = (max(TITLE_INCHES, columns * (INCHES_A_PIECE * width + 1.4)), rows * (INCHES_A_PIECE * height + 1.4))
    figure = Figure(figsize=size, layout='constrained')
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(found) :]:
        axes.set_axis_off()
    for axes, one in zip(grid, found, strict=False):
        draw_alignment(axes, one)
    figure.suptitle("weights of the last layer's cross-attention, mean of its heads: source to the right", size=9)
    return figure


def source_and_target_pieces(one: Translation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the tokens of a translation's source and the tokens of its target."""
    return one.source_pieces, one.pieces


def plain(pieces: tuple[str, ...]) -> list[str]:
    """Returns tokens as labels, without SentencePiece's mark of a word's start."""
    return [piece.replace('▁', ' ').strip() for piece in pieces]


def draw_alignment(axes: Axes, one: Translation) -> None:
    """Draws the alignment of one translation; each row of weights sums to 1."""
    if one.alignment is None:
        raise ValueError('the translation has no alignment; ask the translator for alignments')
    weights = np.asarray(one.alignment)[: len(one.pieces), : len(one.source_pieces)]
    axes.imshow(weights, cmap='Blues', vmin=0.0, vmax=1.0, aspect='equal')
    axes.set_xticks(range(len(one.source_pieces)), plain(one.source_pieces), rotation=90, fontsize=7)
    axes.set_yticks(range(len(one.pieces)), plain(one.pieces), fontsize=7)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_color('#cbd5e1')
