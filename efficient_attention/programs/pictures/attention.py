"""Writes an HTML page of what the layers and heads of a checkpoint read in a text, and a drawing of one head."""

import itertools
import warnings
from typing import Any

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_checkpoint,
    define_integers,
    define_model,
    define_path,
)
from efficient_attention.errors import InputError
from efficient_attention.inference.attention_pipeline import open_attention_pipeline
from efficient_attention.inspection.attention_figure import attention_figure
from efficient_attention.inspection.attention_page import attention_page_of_windows
from efficient_attention.workdir.checkpoint_reader import LAST

LONGEST = 128  # most tokens of which the drawing has all edges; a longer text has the strongest FEW of each query
FEW = 8


def define_attention_flags(options: flags.FlagValues) -> None:
    """Defines the flags that choose the model, the text, the layers and heads, and the size of the page."""
    define_model(options)
    define_checkpoint(LAST, options=options)
    flags.DEFINE_string(
        'text', None, 'The text that the model reads; for a model of images, the path of one.', flag_values=options
    )
    pair = 'Second text: of a pair for an encoder, the continuation of --text for a decoder.'
    flags.DEFINE_string('pair', None, pair, flag_values=options)
    define_integers('layers', None, 'Layers to show, numbers from 0; by default all.', options)
    define_integers('heads', None, 'Heads to show, numbers from 0; by default all.', options)
    flags.DEFINE_integer('length', 0, 'Most tokens of a window; 0 = as many as the model reads.', flag_values=options)
    flags.DEFINE_float('megabytes', 5.0, 'Most megabytes (10^6 bytes) of the page.', flag_values=options)
    define_path(
        'figure', 'SVG file to write too: the lines of the one head that --layers and --heads name.', None, options
    )


def write_attention_page(options: flags.FlagValues) -> None:
    """Writes the page and, with --figure, the drawing of one head.

    A long text is read in several windows. The page has all of them; the drawing is of the first.

    Raises:
        InputError: the model has no attention weights, or lacks such a layer or head; the text is empty, or the page
            does not fit its size.
    """
    layers, heads = options.layers, options.heads
    if options.figure is not None and any(chosen is None or len(chosen) != 1 for chosen in (layers, heads)):
        raise InputError('--figure draws one head; name its layer and its number, such as --layers=3 --heads=5')
    chosen = {'layers': layers, 'heads': heads, 'length': options.length}
    opened = open_attention_pipeline(options.model, checkpoint_from_flags(options), chosen)
    text = options.text if options.pair is None else (options.text, options.pair)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'a text is read in')  # the page says this
        windows = opened.windows(text)
        first = [{**one, 'layers': [*one['layers']]} for one in itertools.islice(windows, options.figure is not None)]
        title = f'What each head of {options.model.name or options.model.resolve().name} reads'
        page = attention_page_of_windows(itertools.chain(first, windows), megabytes=options.megabytes, title=title)
    write_atomically(options.output, page)
    for window in first:
        write_atomically(options.figure, head_figure(window))
        print(options.figure)


def head_figure(window: dict[str, Any]) -> str:
    """Returns the drawing of a window's only head; raises InputError if its layer has no such head."""
    layer = window['layers'][0]
    if not layer['heads']:
        raise InputError(f'layer {layer["layer"]} has no such head')
    tokens, keys = window['tokens'], window['key_tokens']
    title = f'layer {layer["layer"]}, head {layer["heads"][0]}'
    most = None if len(tokens) <= LONGEST else FEW
    return attention_figure(tokens, layer['weights'][0], key_tokens=keys, most=most, title=title)
