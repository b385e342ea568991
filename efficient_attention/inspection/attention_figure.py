"""Draws what one head reads as an SVG file, without a browser: lines from the queries to the keys."""

import html
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from efficient_attention.errors import InputError, require, require_at_least
from efficient_attention.inspection.attention_edges import largest

ROW, HEADING = 20, 30  # height of a token and of the heading, in units of the drawing
LETTER = 8  # width of a letter; wider letters only come nearer to the edge
MOST_LETTERS = 24  # longer tokens are cut
LINES = 260  # width of the lines
COLOURS = {False: '#2563eb', True: '#c2410c'}  # {whether the weight is negative: its colour}
STYLE = 'font-family="system-ui, sans-serif" font-size="13" fill="#0f172a"'
NOT_IN_XML = re.compile('[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]')


def attention_figure(
    tokens: Sequence[str],
    weights_LM: Any,
    *,
    key_tokens: Sequence[str] | None = None,
    most: int | None = None,
    title: str = '',
) -> str:
    """Returns an SVG drawing of one head: queries left, keys right; the larger a weight, the stronger its line.

    Args:
        tokens: the L query tokens.
        weights_LM: the head's weights. The strongest line is that of the largest weight.
        key_tokens: the M key tokens; by default the query tokens. If they end with the query tokens, each token is
            in one row with itself.
        most: the most lines for each query, the strongest; None = all keys that it reads.
        title: a heading.

    Raises:
        InputError: there are no tokens, or the weights have another shape or are not finite.
    """
    keys = [*tokens] if key_tokens is None else [*key_tokens]
    weights_LM = np.asarray(weights_LM, np.float32)
    if not tokens or not keys:
        raise InputError('there are no tokens to show')
    require(weights_LM.shape == (len(tokens), len(keys)), 'the shape of the weights', weights_LM.shape, '[L, M]')
    if not np.isfinite(weights_LM).all():
        raise InputError('a weight is not a finite number')
    if most is not None:
        require_at_least(1, 'most', most)
    memory = len(keys) - len(tokens)
    first = memory if memory > 0 and keys[memory:] == [*tokens] else 0  # row of the first query
    queries, keys = ([label(token) for token in names] for names in (tokens, keys))
    left = LETTER * max(map(len, queries)) + 16
    width, height = (
        left + LINES + LETTER * max(map(len, keys)) + 16,
        HEADING + ROW * max(len(queries) + first, len(keys)),
    )
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} {STYLE}>',
        f'<rect {size} fill="#ffffff"/>',
        text_element(width / 2, HEADING / 2, label(title, 200) if title else '', 'middle'),
        *lines(weights_LM, left, first, most),
        *(text_element(left - 8, middle(first + row), name, 'end') for row, name in enumerate(queries)),
        *(text_element(left + LINES + 8, middle(row), name, 'start') for row, name in enumerate(keys)),
        '</svg>',
    ]
    return '\n'.join(parts) + '\n'


def lines(weights_LM: np.ndarray, left: float, first: int, most: int | None) -> list[str]:
    """Returns the lines of a head's nonzero weights, the strongest `most` of each query; query 0 is in row `first`."""
    top, found = largest(weights_LM) or 1.0, []
    for query, weights_M in enumerate(weights_LM):
        order = np.argsort(-np.abs(weights_M), kind='stable')[:most]
        for key in order[weights_M[order] != 0.0]:
            share = abs(float(weights_M[key])) / top
            look = f'stroke="{COLOURS[bool(weights_M[key] < 0)]}" stroke-opacity="{share:.3f}"'
            ends = f'x1="{left}" y1="{middle(first + query)}" x2="{left + LINES}" y2="{middle(int(key))}"'
            found.append(f'<line {ends} {look} stroke-width="{0.8 + 2.2 * share:.2f}"/>')
    return found


def middle(row: int) -> float:
    """Returns the height of the middle of a row."""
    return HEADING + ROW * row + ROW / 2


def label(token: str, most: int = MOST_LETTERS) -> str:
    """Returns a token as it is shown: cut to `most` letters, with signs for spaces and for unprintable characters."""
    name = NOT_IN_XML.sub('\N{REPLACEMENT CHARACTER}', token.replace('\n', '⏎').replace('\t', '⇥').replace('\r', '␍'))
    name = name if name.strip() else name.replace(' ', '␣') or '∅'
    return name if len(name) <= most else f'{name[: most - 1]}…'


def text_element(x: float, y: float, name: str, anchor: str) -> str:
    """Returns an SVG element with a text at (x, y); a right-to-left text is isolated from the anchor's direction."""
    look = (
        f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" dominant-baseline="central" direction="ltr" xml:space="preserve"'
    )
    return f'<text {look}>\u2068{html.escape(name)}\u2069</text>' if name else ''
