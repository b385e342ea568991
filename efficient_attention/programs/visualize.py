"""Draws attention: of a checkpoint, patterns, cross-attention, pooling weights, or weights of mechanisms.

    efficient-attention visualize attention --model runs/x --text 'The dog sleeps.' --output attention.html
    efficient-attention visualize pattern 'causal & window(256)' --output window.png
    efficient-attention visualize alignment --model runs/multi30k 'Zwei Hunde spielen.' --output alignment.png
    efficient-attention visualize pooling --model runs/han 'It begins well. The end is bad.' --output pooling.html
    efficient-attention visualize weights 'sparsemax(causal)' 'entmax(causal)' causal --output weights.png

`attention` writes a page that shows what each layer and head of a checkpoint reads in a text. For a long text, the page
has a choice of the window. `pattern` draws one pattern and its computed tiles, as PNG and in the terminal, and prints
its cost. `gallery` draws all named patterns and presets in one picture. `alignment` prints an encoder-decoder's output
for each text, and draws the weights of its cross-attention. `pooling` writes a page with the weights of sentences and
words in a classifier's decision. `weights` draws the attention weights of mechanisms for the same random queries and
keys.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from efficient_attention.atomic_files import atomic_file, write_atomically
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import picture as shades
from efficient_attention.attention.patterns.pattern import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import split_into_disjoint_patterns, tile_table
from efficient_attention.commands.command_line import parse_flags, split_subcommand
from efficient_attention.commands.flags import define_length, define_output
from efficient_attention.errors import InputError, require

Panel = tuple[np.ndarray, str]  # one picture of a pattern: an array of shades, and the caption

# There is one colour per shade; attention/patterns/picture.py defines the shades.
COLOURS = ('#ffffff', '#dbeafe', '#60a5fa', '#1e40af', '#ea580c')
ORDERED = len(COLOURS) - 1  # shade of query-key pairs that are computed with reordered positions
PAIR_LABELS = (
    '',
    'computed, then masked',
    'allowed',
    'allowed, in a tile without a mask',
    'allowed, computed in another order',
)
TILE_LABELS = ('', '', 'tile that needs a mask', 'tile that needs none', 'tile with pairs computed in another order')
TEXT_COLOUR, LINE_COLOUR = '#334155', '#cbd5e1'
LONGEST, MOST_HEADS_ASKED = 2**17, 1024  # maximum positions and maximum heads of a pattern
MOST_PAIRS = 1024  # up to this many positions, each query-key pair is drawn; longer patterns are drawn by tiles
MOST_HEADS = 4  # maximum number of heads that are drawn; a message names the number of heads left out
GALLERY = (
    *('full', 'causal', 'window(12)', 'listed_tiles(16, 0, 3, 5, 1)'),
    *('window(3, dilation=8)', 'strided(16)', 'block(32)', 'causal & block(16, back=1)'),
    *('summary(32, 4)', 'global_tokens(3, last=3)', 'random_tiles(2, 8)', 'prefix(48)'),
    *('longformer(12, 3)', 'bigbird(8, 2)', 'sparse_fixed(32, 4)', 'sparse_strided(16)'),
)
GALLERY_LENGTH, GALLERY_TILE = 128, 8
WORDS = {  # {action: its positional arguments}
    'attention': '',
    'pattern': 'PATTERN',
    'gallery': '',
    'alignment': 'TEXT...',
    'pooling': 'TEXT...',
    'weights': 'MECHANISM...',
}
REQUIRED = {'attention': ('model', 'text'), 'alignment': ('model',), 'pooling': ('model',)}


def main() -> None:
    """Reads the flags, writes the picture of the chosen action, and prints the path of the file."""
    command, arguments = split_subcommand(sys.argv, WORDS, about=__doc__)
    options = define_flags(command)
    required = REQUIRED.get(command, ())
    words = parse_flags(arguments, required, options=options, words=WORDS[command], command=command, about=__doc__)
    if command == 'attention':
        # This import and the others of pictures/ are late, because they import the models.
        from efficient_attention.programs.pictures.attention import write_attention_page

        write_attention_page(options)
    elif command == 'pooling':
        from efficient_attention.programs.pictures.pooling import pages_of_texts

        write_atomically(options.output, pages_of_texts(words, options))
    else:
        figure = plot_figure(command, words, options)
        with atomic_file(options.output) as partial:
            figure.savefig(partial, format='png', dpi=150)
    print(options.output)


def plot_figure(command: str, words: list[str], options: flags.FlagValues) -> Figure:
    """Draws the picture of an action such as 'pattern' or 'alignment', and returns it as a matplotlib figure."""
    if command == 'alignment':
        from efficient_attention.programs.pictures.alignment import draw_translation_alignments

        return draw_translation_alignments(words, options)
    if command == 'weights':
        from efficient_attention.programs.pictures.weights import draw_attention_weights

        return draw_attention_weights(words, options)
    return draw_pattern(words[0], options) if command == 'pattern' else draw_gallery()


def define_flags(command: str) -> flags.FlagValues:
    """Defines the command-line flags of an action, and returns them."""
    options = flags.FlagValues()
    if command == 'gallery':
        define_output('PNG to write.', Path('docs/images/patterns.png'), options)
        return options
    if command == 'alignment':
        from efficient_attention.programs.pictures.alignment import define_alignment_flags

        define_output('PNG to write.', Path('alignment.png'), options)
        define_alignment_flags(options)
        return options
    if command == 'attention':
        from efficient_attention.programs.pictures.attention import define_attention_flags

        define_output('HTML page to write.', Path('attention.html'), options)
        define_attention_flags(options)
        return options
    if command == 'pooling':
        from efficient_attention.programs.pictures.pooling import define_pooling_flags

        define_output('HTML page to write.', Path('pooling.html'), options)
        define_pooling_flags(options)
        return options
    if command == 'weights':
        from efficient_attention.programs.pictures.weights import define_weight_flags

        define_output('PNG to write.', Path('weights.png'), options)
        define_weight_flags(options)
        return options
    define_output('PNG to write.', Path('pattern.png'), options)
    define_length(1024, 'Positions.', options)
    flags.DEFINE_integer('tile', 64, 'Positions of a tile.', flag_values=options)
    flags.DEFINE_integer('heads', 1, 'Query heads; heads with equal patterns are drawn once.', flag_values=options)
    return options


def draw_pattern(text: str, options: flags.FlagValues) -> Figure:
    """Returns a picture of a pattern, with a row per distinct head; prints the pattern and its cost.

    A row has the pattern in natural order, and a picture for each order in which positions are computed otherwise.
    """
    for name in ('length', 'tile', 'heads'):
        if getattr(options, name) < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    length, tile = options.length, options.tile
    require(length <= LONGEST, '--length', length, f'at most {LONGEST}')
    require(options.heads <= MOST_HEADS_ASKED, '--heads', options.heads, f'at most {MOST_HEADS_ASKED}')
    heads = head_patterns(parse_pattern(text).for_key_count(length), options.heads)
    names = {pattern: f'head {heads.index(pattern)}, ' if len(heads) > 1 else '' for pattern in heads}
    for pattern, name in names.items():
        print(f'{name}{text}')
        print(shades.ascii_picture(pattern, length))
        print('\n'.join(shades.describe_pattern_cost(pattern, length, tile)))
    drawn = list(names.items())[:MOST_HEADS]
    if len(drawn) < len(names):
        print(f'the picture shows {len(drawn)} of {len(names)} different heads')
    rows = [pattern_panels(pattern, length, tile, name) for pattern, name in drawn]
    figure = Figure(figsize=(4.2 * max(map(len, rows)), 4.3 * len(rows) + 0.7), layout='constrained')
    grid = figure.subplots(len(rows), max(map(len, rows)), squeeze=False)
    for axes, panel in zip(grid.ravel(), pad_panel_rows(rows, grid.shape[1]), strict=True):
        axes.set_axis_off() if panel is None else draw_shades(axes, *panel, length, tile)
    figure.suptitle(text, color=TEXT_COLOUR, family='monospace', size=11)
    labels = PAIR_LABELS if length <= MOST_PAIRS else TILE_LABELS
    add_legend(figure, labels, columns=2 * grid.shape[1], has_orders=grid.shape[1] > 1)
    return figure


def pad_panel_rows(rows: list[list[Panel]], columns: int) -> list[Panel | None]:
    """Returns the pictures of all rows in one list, where each row is padded with None to the same length."""
    return [row[number] if number < len(row) else None for row in rows for number in range(columns)]


def pattern_panels(pattern: Pattern, length: int, tile: int, name: str) -> list[Panel]:
    """Returns the pictures of one head's pattern: one in natural order, and one per reordering of the positions."""
    parts = split_into_disjoint_patterns(pattern)
    result = [(shades_in_natural_order(pattern, length, tile), f'{name}natural order')]
    for number, (part, order) in enumerate(parts, 1):
        if order > 1:
            positions = shades.listed_positions(length, order)
            if length <= MOST_PAIRS:
                found = shades.pair_shades(part, positions, tile, order)
            else:
                found = shades.tile_shades(tile_table(part, positions, positions, tile, order))
            result.append((found, f'{name}pass {number}: ordered by position mod {order}'))
    return result


def shades_in_natural_order(pattern: Pattern, length: int, tile: int) -> np.ndarray:
    """Returns the shades of a pattern in natural order of positions: per query-key pair or, if long, per tile.

    Pairs that are computed with reordered positions have a separate shade.
    """
    positions = np.arange(length)
    by_pair = length <= MOST_PAIRS
    picture = np.zeros((length if by_pair else -(-length // tile),) * 2, np.uint8)
    for part, order in split_into_disjoint_patterns(pattern):
        if by_pair:
            found = shades.pair_shades(part, positions, tile)
        else:
            found = shades.tile_shades(tile_table(part, positions, positions, tile))
        if order > 1:
            found = np.where(found >= shades.PARTIAL, ORDERED, shades.EMPTY)
        picture = np.where((found > picture) & (picture < shades.PARTIAL), found, picture)
    return picture


def draw_shades(axes: Axes, picture: np.ndarray, caption: str, length: int, tile: int) -> None:
    """Draws the shades of one pattern, with thin lines between tiles: queries downwards, keys to the right."""
    look: dict[str, Any] = {'cmap': ListedColormap(COLOURS), 'vmin': 0, 'vmax': ORDERED}
    smoothing = 'nearest' if len(picture) <= 256 else 'auto'
    axes.imshow(picture, **look, extent=(0, length, length, 0), interpolation=smoothing)
    if length / tile <= 32:
        edges = np.arange(0, length + 1, tile)
        axes.hlines(edges, 0, length, color=LINE_COLOUR, linewidth=0.4)
        axes.vlines(edges, 0, length, color=LINE_COLOUR, linewidth=0.4)
    axes.set_title(caption, color=TEXT_COLOUR, size=9, family='monospace')
    axes.tick_params(colors=TEXT_COLOUR, labelsize=7, length=0)
    for spine in axes.spines.values():
        spine.set_color(LINE_COLOUR)


def add_legend(figure: Figure, labels: tuple[str, ...], *, columns: int, has_orders: bool) -> None:
    """Adds a legend of the colours below the pictures of a pattern."""
    shown = [(label, colour) for label, colour in zip(labels, COLOURS, strict=True) if label]
    patches = [Patch(facecolor=colour, edgecolor=LINE_COLOUR, label=label) for label, colour in shown]
    handles = patches if has_orders else patches[:-1]
    look = {'frameon': False, 'fontsize': 8, 'labelcolor': TEXT_COLOUR}
    figure.legend(handles=handles, loc='outside lower center', ncols=columns, **look)


def draw_gallery() -> Figure:
    """Returns a picture of all named attention patterns and presets at 128 positions, in tiles of 8."""
    figure = Figure(figsize=(9.6, 10.4), layout='constrained')
    for axes, text in zip(figure.subplots(4, 4).ravel(), GALLERY, strict=True):
        pattern = parse_pattern(text).for_key_count(GALLERY_LENGTH).for_head(0, 1)
        draw_shades(
            axes, shades_in_natural_order(pattern, GALLERY_LENGTH, GALLERY_TILE), text, GALLERY_LENGTH, GALLERY_TILE
        )
        axes.set_xticks([])
        axes.set_yticks([])
    title = (
        f'query positions downwards, key positions to the right: {GALLERY_LENGTH} of each, in tiles of {GALLERY_TILE}'
    )
    figure.suptitle(title, color=TEXT_COLOUR, size=9)
    add_legend(figure, PAIR_LABELS, columns=4, has_orders=True)
    return figure
