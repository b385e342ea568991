"""Writes HTML pages that show what the layers and heads of a model read: lines, heat maps, neurons and shaded text.

    page = ea.attention_page(['the', 'dog', 'sleeps'], weights_NHLM)
    pathlib.Path('page.html').write_text(page, encoding='utf-8')

A page is one file with its own script. Its content security policy forbids every request. It holds the tokens as data,
which the script shows as text and never as markup.
"""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from efficient_attention.errors import InputError, is_number, require
from efficient_attention.inspection.attention_edges import (
    MOST_KEYS,
    Blocks,
    HeadEdges,
    edge_bytes,
    largest,
    layer_edges,
    most_edges,
    pack_edges,
    quantize,
)
from efficient_attention.inspection.page_shell import fill_shell, json_text

TITLE = 'What each head reads'
BYTES = 1e6  # bytes of a megabyte
HEAD_JSON, LAYER_JSON, SLACK = 420, 60, 900  # most bytes of the JSON of a head and of a layer; bytes for notes
SHARE_OF_EXTRAS = 0.25  # if not every edge fits, other arrays get at most this share of the budget
NEURON_LEVELS = 2**15 - 1  # queries and keys have 16 bits
TEXTS_OF_EXTRAS = {
    'norms': 'The lengths of the values are left out, because they do not fit in the size of this page.',
    'rounds': 'The rounds of LSH are left out, because they do not fit in the size of this page.',
    'neurons': 'Queries and keys are left out, because they do not fit in the size of this page.',
}


class AttentionPage(str):
    """The text of a page; a notebook shows it in a frame."""

    def _repr_html_(self) -> str:
        """Returns the page in a frame, as Jupyter shows it; the frame may run the page's script and save its files."""
        look = 'style="width: 100%; height: 760px; border: 0" sandbox="allow-scripts allow-downloads"'
        return f'<iframe srcdoc="{html.escape(self)}" {look}></iframe>'


class ReadLayer(NamedTuple):
    """One layer as the page shows it; the arrays are from the layer's dict."""

    name: int | str
    heads: list[int]
    scale: float | None
    edges: list[HeadEdges]
    # 'norms' [H, M], 'rounds' [2, H, T, L], 'neurons': queries and keys; absent ones are missing
    arrays: dict[str, Any]
    left_out: list[str]  # names of arrays that are larger than the page
    errors: list[float] | None  # of each head, if its weights are an estimate
    chunk_count: int | None  # of each round of LSH


class ReadWindow(NamedTuple):
    """The tokens of a window and its layers."""

    record: dict[str, Any]
    layers: list[ReadLayer]


def attention_page(
    tokens: Sequence[str],
    weights: Any,
    *,
    key_tokens: Sequence[str] | None = None,
    texts: Sequence[int | None] | None = None,
    image_shape: tuple[int, int] | None = None,
    megabytes: float = 5.0,
    title: str = TITLE,
) -> AttentionPage:
    """Returns an HTML page with the attention weights of anybody's model, as text; notebooks show it in a frame.

    Args:
        tokens: the L query tokens.
        weights: an array [N, H, L, M], or an iterable of layers, such as a generator that computes them one at a time.
            A layer is an array [H, L, M], or a dict with 'weights' and, if known, the other arrays of the pipeline
            `attention`: 'layer', 'heads', 'queries', 'keys', 'scale', 'value_norms', 'softmax_weights',
            'softmax_errors', 'hash_rounds'. Softmax weights are shown as a layer of their own, after the layer. Weights
            are drawn as they are: they may be negative, or not sum to 1.
        key_tokens: the M key tokens; by default the query tokens. If they end with the query tokens, the rest are
            segment memory.
        texts: the text of each query token, 0 or 1; None for special tokens. By default all are of text 0.
        image_shape: height and width, if the keys that are not special tokens are the pixels of an image by rows.
        megabytes: the most that the page may have, in 10^6 bytes. If all edges do not fit, the page has the strongest
            of each query, and says for each head which share of the weight they have.
        title: the heading.

    Raises:
        InputError: an array has a wrong shape or no finite numbers, or not even one edge of each query fits.
    """
    if getattr(weights, 'ndim', 4) == 3:
        found = 'x'.join(map(str, weights.shape))
        raise InputError(f'the weights are {found}; give layers x heads x queries x keys, or a list of layers')
    layers = (_layer_dict(layer, number) for number, layer in enumerate(weights))
    keys = tokens if key_tokens is None else key_tokens
    window = {'tokens': tokens, 'key_tokens': keys, 'texts': texts, 'layers': layers}
    return attention_page_of_windows(window, image_shape=image_shape, megabytes=megabytes, title=title)


def attention_page_of_windows(
    windows: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    image_shape: tuple[int, int] | None = None,
    megabytes: float = 5.0,
    title: str = TITLE,
    notes: Sequence[str] = (),
) -> AttentionPage:
    """Returns an HTML page of a window of the pipeline `attention`, or of several, which share the budget.

    Args:
        windows: windows as the pipeline returns or yields them. Their layers are read one at a time.
        image_shape, megabytes, title: as for `attention_page`.
        notes: sentences to show below the title.

    Raises:
        InputError: as `attention_page`.
    """
    require(is_number(megabytes) and 0 < megabytes < math.inf, 'megabytes', megabytes, 'a number above 0')
    parts = [windows] if isinstance(windows, Mapping) else windows
    found = _read_windows(parts, megabytes * BYTES, image_shape)
    if not any(one.layers for one in found):
        raise InputError('there is no layer to show')
    return _page(found, megabytes * BYTES, title, notes)


def _layer_dict(layer: Any, number: int) -> dict[str, Any]:
    """Returns the dict of a layer that may be an array."""
    return {'layer': number, **(layer if isinstance(layer, Mapping) else {'weights': layer})}


def _page(windows: list[ReadWindow], budget: float, title: str, notes: Sequence[str]) -> AttentionPage:
    shell = len(fill_shell(title, '', '').encode())
    chosen, most = _fit(
        windows, budget - shell - SLACK - sum(len(json_text(note).encode()) + 1 for note in notes), budget
    )
    blocks, records = Blocks(), []
    for window in windows:
        layers = [_pack_layer(layer, chosen, most, blocks) for layer in window.layers]
        records.append(window.record | {'layers': layers})
    there = {name for window in windows for layer in window.layers for name in (*layer.arrays, *layer.left_out)}
    left_out = [text for name, text in TEXTS_OF_EXTRAS.items() if name in there and name not in chosen]
    several = [f'The text is read in {len(windows)} windows; choose one below.'] if len(windows) > 1 else []
    content = {'notes': [*notes, *several, *left_out], 'windows': records}
    return AttentionPage(fill_shell(title, json_text(content), blocks.base64()))


def _read_windows(
    windows: Iterable[Mapping[str, Any]], budget: float, image_shape: tuple[int, int] | None
) -> list[ReadWindow]:
    """Returns the windows with the strongest edges of each layer. They never have many more edges than fit the page."""
    found, room = list[ReadWindow](), budget * 0.75  # base64 has four bytes for three
    for window in windows:
        record = _window_record(window, image_shape or window.get('image_shape'))
        found.append(ReadWindow(record, []))
        for layer in _with_softmax(window['layers']):
            size = len(record['tokens']), len(window['key_tokens'])
            _add_layer(found[-1].layers, _read_layer(layer, size, budget))
            heads = [head for one in found for part in one.layers for head in part.edges]
            most = max(1, most_edges([(head.counts_L, head.key_count) for head in heads], room))
            for one in found:
                one.layers[:] = [
                    part._replace(edges=[head.with_most(most) for head in part.edges]) for part in one.layers
                ]
    return found


def _add_layer(layers: list[ReadLayer], part: ReadLayer) -> None:
    """Appends a layer, or joins it to the one of the same name if that has other heads."""
    for place, one in enumerate(layers):
        if one.name == part.name and not {*one.heads} & {*part.heads}:
            arrays: dict[str, Any] = {}
            for name in one.arrays.keys() & part.arrays.keys():
                first, second = one.arrays[name], part.arrays[name]
                if name == 'neurons':
                    arrays[name] = [np.concatenate(both) for both in zip(first, second, strict=True)]
                else:
                    arrays[name] = np.concatenate([first, second], axis=1 if name == 'rounds' else 0)
            layers[place] = one._replace(
                heads=[*one.heads, *part.heads],
                edges=[*one.edges, *part.edges],
                arrays=arrays,
                left_out=sorted({*one.left_out, *part.left_out}),
                errors=None if one.errors is None else [*one.errors, *(part.errors or ())],
            )
            return
    layers.append(part)


def _with_softmax(layers: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields each layer, and after a layer of FAVOR the softmax attention that it estimates."""
    for layer in layers:
        softmax = layer.get('softmax_weights')
        if softmax is None:
            yield layer
            continue
        yield {**layer, 'queries': None}  # FAVOR multiplies the features of queries and keys, not these
        scale = None if layer.get('keys') is None else layer['keys'].shape[-1] ** -0.5
        changed = {'layer': f'{layer["layer"]} softmax', 'weights': softmax, 'softmax_errors': None, 'scale': scale}
        yield {**layer, **changed}


def _window_record(window: Mapping[str, Any], image_shape: tuple[int, int] | None) -> dict[str, Any]:
    """Returns what the page says about a window's tokens; raises InputError if they do not belong together."""
    tokens, keys = ([*window[name]] for name in ('tokens', 'key_tokens'))
    if not tokens or not keys:
        raise InputError('there are no tokens to show')
    if not all(isinstance(token, str) for token in (*tokens, *keys)):
        raise InputError('a token is not a text')
    texts = window.get('texts')
    texts = [0] * len(tokens) if texts is None else [None if one is None else int(one) for one in texts]
    require(len(texts) == len(tokens), 'the number of texts', len(texts), f'that of the tokens, {len(tokens)}')
    memory = len(keys) - len(tokens)
    is_own = memory >= 0 and keys[memory:] == tokens  # the queries read themselves, and perhaps earlier tokens
    if image_shape is not None:
        pixels = sum(text is not None for text in texts) if is_own else len(keys)
        # A language model of images does not read the last byte.
        is_right = math.prod(image_shape) in (pixels, pixels + (is_own and texts[0] is None))
        require(is_right, 'image_shape', image_shape, f'of the {pixels} keys that are pixels')
    return {
        'tokens': tokens,
        'keys': None if is_own and not memory else keys,
        'texts': texts if any(text != 0 for text in texts) else None,
        'memory': memory if is_own else None,
        'image': None if image_shape is None else [*image_shape],
    }


def _read_layer(layer: Mapping[str, Any], size: tuple[int, int], budget: float) -> ReadLayer:
    """Returns a layer's strongest edges with its small arrays; larger arrays than the page are left out at once."""
    name, scale, errors = layer.get('layer', 0), layer.get('scale'), layer.get('softmax_errors')
    try:
        heads = _check_layer(layer, size)
        edges = layer_edges(layer['weights'], layer.get('value_norms'), budget * 0.75)
    except InputError as error:
        raise InputError(f'layer {name}: {error}') from None
    arrays: dict[str, Any] = {}
    if layer.get('value_norms') is not None:
        arrays['norms'] = np.asarray(layer['value_norms'], np.float32)
    if layer.get('hash_rounds') is not None:
        arrays['rounds'] = np.stack([layer['hash_rounds'][name] for name in ('buckets', 'chunks')])
    if layer.get('queries') is not None and layer.get('keys') is not None:
        arrays['neurons'] = [np.asarray(layer[name], np.float32) for name in ('queries', 'keys')]
    large = [name for name in arrays if _bytes_of(name, arrays[name], len(heads), size[0]) > budget]
    arrays = {name: array for name, array in arrays.items() if name not in large}
    chunks = (layer.get('hash_rounds') or {}).get('chunk_count')
    errors = None if errors is None else [*map(float, errors)]
    return ReadLayer(name, heads, None if scale is None else float(scale), edges, arrays, large, errors, chunks)


def _check_layer(layer: Mapping[str, Any], size: tuple[int, int]) -> list[int]:
    """Returns the numbers of a layer's heads; raises InputError if an array has another shape than [H, L, M]."""
    shape, (queries, keys) = np.shape(layer['weights']), size
    if len(shape) != 3 or shape[1:] != size or not shape[0]:
        raise InputError(f'the weights are {"x".join(map(str, shape))}; they must be heads x {queries} x {keys}')
    heads = [*map(int, layer.get('heads', range(shape[0])))]
    require(len(heads) == shape[0], 'the number of heads', len(heads), f'{shape[0]}, as in the weights')
    width = np.shape(layer['keys'])[-1:] if layer.get('keys') is not None else ()
    wanted = {'value_norms': (keys,), 'queries': (queries, *width), 'keys': (keys, *width)}
    for name, rest in wanted.items():
        array = layer.get(name)
        if array is not None and (np.shape(array) != (shape[0], *rest) or not np.isfinite(array).all()):
            raise InputError(f'{name} must be finite numbers [{", ".join(map(str, (shape[0], *rest)))}]')
    for name in ('buckets', 'chunks') if layer.get('hash_rounds') is not None else ():
        found = np.shape(layer['hash_rounds'][name])
        is_right = found[::2] == (shape[0], queries) and queries == keys
        require(is_right, f'the shape of {name}', found, '[H, T, L], L = M')
    return heads


def _bytes_of(name: str, array: Any, heads: int, queries: int) -> int:
    """Returns the bytes that the arrays of one name take in the blocks."""
    if name == 'norms':
        return array.size + heads * (queries + 4)
    if name == 'rounds':
        return 2 * array.size
    return 2 * sum(one.size for one in array)


def _fit(windows: list[ReadWindow], room: float, budget: float) -> tuple[set[str], int]:
    """Returns the optional arrays that fit in the page with the edges, and the most edges per query.

    Args:
        windows: all windows of the page.
        room: bytes of the page that are left for their tokens and arrays.
        budget: bytes of the whole page, for the message of the error.

    Raises:
        InputError: not even one edge of each query fits.
    """
    layers = [layer for window in windows for layer in window.layers]
    heads = [(head.counts_L, head.key_count) for layer in layers for head in layer.edges]
    tiles = sum(head.tiles_tt.size + 2 for layer in layers for head in layer.edges)
    fixed = HEAD_JSON * len(heads) + LAYER_JSON * len(layers)
    fixed += sum(len(json_text(window.record).encode()) + 40 for window in windows)
    free = (room - fixed) * 0.75 - tiles - 4  # base64 has four bytes for three
    least, whole = (sum(edge_bytes(*head, most) for head in heads) for most in (1, MOST_KEYS))
    if least > free:
        smallest = (budget - room + fixed + (least + tiles + 4) / 0.75) / BYTES
        queries = sum(len(counts_L) for counts_L, _ in heads)
        raise InputError(
            f'megabytes is {budget / BYTES:g}; a page with one edge for each of the {queries:,} queries of all heads '
            f'needs at least {math.ceil(smallest * 100) / 100:g}'
        )
    chosen, used = set[str](), 0
    for name in TEXTS_OF_EXTRAS:
        there = [layer for layer in layers if name in layer.arrays]
        size = sum(_bytes_of(name, one.arrays[name], len(one.heads), len(one.edges[0].counts_L)) for one in there)
        has_room = used + size + whole <= free or used + size <= min(SHARE_OF_EXTRAS * free, free - least)
        if there and has_room and not any(name in layer.left_out for layer in layers):
            chosen, used = chosen | {name}, used + size
    return chosen, most_edges(heads, free - used)


def _pack_layer(layer: ReadLayer, chosen: set[str], most: int, blocks: Blocks) -> dict[str, Any]:
    """Appends the arrays of a layer to the blocks, and returns the layer's record."""
    heads = []
    for place, (number, edges) in enumerate(zip(layer.heads, layer.edges, strict=True)):
        rows, columns = edges.tiles_tt.shape
        codes_tt = quantize(edges.tiles_tt, largest(edges.tiles_tt))
        record = {'head': number, **pack_edges(edges, most, blocks), 'tiles': [blocks.add(codes_tt), rows, columns]}
        arrays = {name: layer.arrays[name] for name in chosen if name in layer.arrays}
        if 'norms' in arrays and edges.sums_L is not None:
            record['norms'] = [*_packed(arrays['norms'][place], blocks), *_packed(edges.sums_L, blocks)]
        if 'rounds' in arrays:
            buckets_TL, chunks_TL = arrays['rounds'][:, place]
            record['rounds'] = [blocks.add(buckets_TL, 'u2'), blocks.add(chunks_TL, 'u2'), len(buckets_TL)]
        if layer.errors is not None:
            record['error'] = layer.errors[place]
        if 'neurons' in arrays:
            record['neurons'] = [value for one in arrays['neurons'] for value in _packed_levels(one[place], blocks)]
            record['width'] = arrays['neurons'][0].shape[-1]
        heads.append(record)
    return {'layer': layer.name, 'scale': layer.scale, 'chunks': layer.chunk_count, 'heads': heads}


def _packed(values: np.ndarray, blocks: Blocks) -> tuple[int, float]:
    """Appends values of at least 0 as 8-bit codes, and returns their offset and the largest value."""
    top = largest(values)
    return blocks.add(quantize(values, top)), top


def _packed_levels(values: np.ndarray, blocks: Blocks) -> tuple[int, float]:
    """Appends values in 16 bits, and returns their offset and the value of the largest level."""
    top = largest(values)
    return blocks.add(np.rint(values / (top or 1.0) * NEURON_LEVELS), 'i2'), top
