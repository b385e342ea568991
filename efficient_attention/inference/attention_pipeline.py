"""The pipeline `attention`: what each layer and head of a checkpoint reads in a text."""

import functools
import itertools
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.request import Lengths
from efficient_attention.config.examples import BUCKETS
from efficient_attention.config.model import ModelConfig
from efficient_attention.data.sources.images import read_image
from efficient_attention.data.text.text_units import PixelUnits, TextUnits, TokenizerUnits
from efficient_attention.errors import InputError, require, require_at_least
from efficient_attention.inference.generate import prompt_ids
from efficient_attention.inference.language_models import LanguageModel, imported_language_model, open_language_model
from efficient_attention.inference.per_item_errors import check_text, map_items
from efficient_attention.inference.pretrained_models import pretrained_encoder, pretrained_text_encoder, row_length
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, SEVERAL
from efficient_attention.interop.pretrained import Pretrained, check_encoder, open_pretrained
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.layer_readings import (
    LayerReading,
    check_has_weights,
    layer_readings,
    segment_readings,
)
from efficient_attention.models.segment_memory import AnyMemory, CompressedMemory, empty_memory
from efficient_attention.models.uneven_stack import layer_sizes
from efficient_attention.workdir.checkpoint_reader import LAST

# kinds of fine-tuning whose rows have one global token, the first
MARKED_FIRST = ('classification', 'regression', 'token_classification', 'multiple_choice', *SEVERAL)
START = '<start>'  # name of the token before an image
COMPRESSED = '<compressed>'  # name of a key that stands for several tokens of a compressed memory
WINDOW = 1024  # default tokens per window of a decoder that can read any number
AT_ONCE = 512  # up to this many tokens, one compiled program computes the weights of all chosen layers
BYTES_AT_ONCE = 200_000_000  # bytes of weights of one layer of a long window that `windows` computes together
NO_CHARACTER = '\N{REPLACEMENT CHARACTER}'
KEY_ARRAYS = ('keys', 'value_norms')  # arrays of a layer whose second axis is that of the keys
Arrays = dict[str, Any]


class TokenRow(NamedTuple):
    """The tokens of a window.

    Attributes:
        ids_L: the token ids.
        names: the token of each id, as text.
        text_numbers: the text of each token: 0 or 1, the place in the input; None for special tokens.
        types_L: the token types; None = all 0.
        is_global_L: marks global tokens; None = the model has none.
    """

    ids_L: np.ndarray
    names: list[str]
    text_numbers: list[int | None]
    types_L: np.ndarray | None = None
    is_global_L: np.ndarray | None = None

    def padded(self, length: int) -> 'PaddedRow':
        """Returns the arrays that the model reads, padded at their end."""
        count = len(self.ids_L)
        arrays = (self.ids_L, self.types_L, self.is_global_L)
        padded = (None if x is None else jnp.asarray(np.pad(x, (0, length - count)))[None] for x in arrays)
        return PaddedRow(jnp.int32(count), *padded)


class PaddedRow(NamedTuple):
    """The arrays of a window that the model reads, a batch of one row.

    Attributes:
        token_count: number of tokens, int32.
        tokens_BL: the token ids, then zeros.
        types_BL: the token types; None = all 0.
        is_global_BL: marks global tokens; None = the model has none.
    """

    token_count: Array
    tokens_BL: Any
    types_BL: Any = None
    is_global_BL: Any = None

    def options(self) -> dict[str, Any]:
        """Returns token types and marks of global tokens as keyword arguments of `Encoder.embedded`."""
        return {'token_types_BL': self.types_BL, 'is_global_BL': self.is_global_BL}


class EncoderRows:
    """The rows that a checkpoint with an encoder reads of a text or of a pair.

    Attributes:
        pretrained: the checkpoint.
        path: its path.
        model: the encoder.
        length: most tokens of a row.
    """

    def __init__(self, pretrained: Pretrained, path: Path, length: int) -> None:
        check_encoder(path, pretrained)
        self.pretrained, self.path = pretrained, path
        examples = None if pretrained.run is None else pretrained.run.examples
        if examples is not None and examples.sentences:
            raise InputError(f'{path} reads each sentence in a row of its own; attention does not build such rows')
        self.has_towers = examples is not None and examples.towers
        self.encoder = pretrained_text_encoder(pretrained, path)
        self.model = pretrained_encoder(pretrained)
        check_length(self.model.config, length)
        require(length == 0 or length > 2, 'length', length, 'at least 3 for an encoder')
        self.length = length or row_length(pretrained)
        self.marked = pretrained.problem if self.model.config.global_tokens else ''
        if self.marked == 'multi_hop':
            raise InputError(f'{path} marks sentences as global tokens; attention does not build such rows')

    def windows(self, text: str | tuple[str, str]) -> list[TokenRow]:
        """Returns the windows of a text or of a pair; raises InputError if a pair does not fit one window."""
        first, *second = self.encoder.encode([text] if isinstance(text, str) else list(text))
        if second and self.has_towers:
            raise InputError('the model reads the two texts of a pair in rows of their own; give it one text')
        if self.marked == 'question_answering' and not second:
            raise InputError('the model marks the tokens of a question as global; give it a tuple: question, context')
        room = self.length - self.encoder.special_token_count(is_pair=bool(second))
        if second:
            count = len(first.ids) + len(second[0].ids)
            if count > room:
                raise InputError(f'the pair has {count} tokens; a window has room for {room}')
            encodings = [self.encoder.row(first, second[0])]
        else:
            first.truncate(room)
            encodings = [self.encoder.row(window) for window in (first, *first.overflowing)]
        return [self.token_row(one, len(first.ids)) for one in encodings]

    def token_row(self, encoding: Any, first: int) -> TokenRow:
        """Returns the row of an encoding whose text 0 has `first` tokens, with global tokens as in fine-tuning."""
        ids_L, is_global_L = np.asarray(encoding.ids, np.int32), None
        numbers = text_numbers(encoding.special_tokens_mask, first)
        if self.marked in MARKED_FIRST:
            is_global_L = np.arange(len(ids_L)) == 0
        elif self.marked == 'question_answering':
            is_global_L = np.arange(len(ids_L)) <= numbers.index(0) + first - 1
        types_L = np.asarray(encoding.type_ids, np.int32) if self.model.config.token_types > 1 else None
        return TokenRow(ids_L, encoding.tokens, numbers, types_L, is_global_L)

    def padded_length(self, count: int) -> int:
        """Returns the length to which rows of `count` tokens are padded, as in the other pipelines."""
        return bucket(count, self.length)


class DecoderRows:
    """The rows that a language model reads of a text, or of a prompt with its continuation.

    Attributes:
        model: the decoder.
        length: most tokens of a row.
    """

    def __init__(self, opened: LanguageModel, length: int) -> None:
        self.units: TextUnits = opened.units
        self.model: Decoder = nnx.merge(opened.graph, opened.params)
        config = self.model.config
        check_length(config, length)
        self.rate = config.compression_rate if config.compressed_length else 1
        require(length % self.rate == 0, 'length', length, f'a multiple of model.compression_rate, {self.rate}')
        default = config.position_limit or opened.length or WINDOW
        self.length = length or default - default % self.rate
        self.image_shape = opened.image_shape
        if self.image_shape and length:
            raise InputError(f'length is {length}; the model reads whole images')

    def windows(self, text: str | tuple[str, str]) -> list[TokenRow]:
        """Returns the windows of a text, or of a prompt with its continuation; of an image file, one window."""
        if self.image_shape:
            return [self.image_row(text)]
        prompt, whole = ('', text) if isinstance(text, str) else (text[0], ''.join(text))
        ids = prompt_ids(whole, self.units)
        seam = len(os.path.commonprefix([self.units.encode(prompt).tolist(), ids.tolist()]))  # of any two lists
        names = [token_name(self.units, ids[place : place + 1]) for place in range(len(ids))]
        numbers: list[int | None] = [int(bool(prompt) and place >= seam) for place in range(len(ids))]
        parts = [slice(start, start + self.length) for start in range(0, len(ids), self.length)]
        return [TokenRow(ids[part].astype(np.int32), names[part], numbers[part]) for part in parts]

    def image_row(self, path: Any) -> TokenRow:
        """Returns the row of an image file: the start token, then its bytes but the last, which is only predicted."""
        if not isinstance(path, str):
            raise InputError('the model reads images; give it the path of one image')
        bytes_L = self.units.encode(read_image(Path(path), self.image_shape))[:-1].astype(np.int32)
        ids_L = np.insert(bytes_L, 0, PixelUnits.start)
        return TokenRow(ids_L, [START, *map(str, bytes_L.tolist())], [None, *[0] * len(bytes_L)])

    def padded_length(self, count: int) -> int:
        """Returns the length to which rows of `count` tokens are padded, a multiple of the compression rate.

        Rows stay unpadded if the mechanism depends on the number of keys.
        """
        if any(mechanism.key_access.by_length for mechanism in self.model.config.mechanisms):
            return count + -count % self.rate
        padded = bucket(count, self.length)
        return padded + -padded % self.rate


class AttentionPipeline:
    """A pipeline that returns what the layers of an encoder or a decoder read: weights, queries and keys.

    Args:
        rows: the model with its tokenizer.
        layers: numbers of the layers to return, from 0; None = all.
        heads: numbers of the heads to return, from 0; None = all.
    """

    def __init__(
        self, rows: EncoderRows | DecoderRows, *, layers: Sequence[int] | None, heads: Sequence[int] | None
    ) -> None:
        self.rows, config = rows, rows.model.config
        self.layers = checked_numbers('layer', layers, config.layers)
        self.heads = checked_numbers('head', heads, max(heads_of for heads_of, _ in layer_sizes(config)))
        self.graph, self.params = nnx.split(rows.model)

    def __call__(self, inputs: Any) -> Any:
        """Returns the windows of a text or of a tuple of two texts; for a list, a list of these.

        The two texts of a tuple are a pair for an encoder, and a prompt with its continuation for a decoder. A model of
        images takes the path of an image as a text. A window is a dict:

            'tokens'      the L tokens, as texts; each of them is a query
            'key_tokens'  the M tokens that are read: `tokens`, after those of earlier windows if there is segment
                          memory; '<compressed>' stands for several tokens
            'texts'       the text of each token: 0 or 1, the place in the tuple; None for special tokens
            'image_shape' of a model of images: the rows, and the bytes of a row, W times channels; otherwise missing
            'layers'      a dict for each chosen layer:
                'layer', 'heads'  numbers from 0
                'weights'         float32 [heads, L, M]
                'queries'         [heads, L, K], as the layer hands them to `attend`; None if it reads no queries
                'keys'            [heads, M, K], as the layer hands them to `attend`; None if it reads no keys
                'scale'           the factor of query times key in the logits; None if the logits are no such products
                'value_norms'     float32 [heads, M], the length of each value after the output projection
                'softmax_weights' float32 [heads, L, M], the weights that FAVOR estimates; None for other mechanisms
                'softmax_errors'  float32 [heads], total variation distance between FAVOR's weights and these, the mean
                                  over the queries, from 0 to 1; None for other mechanisms
                'hash_rounds'     where the T rounds of LSH put the tokens: a dict of 'buckets' and 'chunks', int32
                                  [heads, T, L], and 'chunk_count', n; a round pairs a query with the keys of its own
                                  chunk and of the chunk before, modulo n, and with `within_buckets` only with those
                                  of its bucket; None for other mechanisms

        A long text has several windows, and a UserWarning says so.
        """
        is_list = isinstance(inputs, list)
        rows = map_items(inputs if is_list else [inputs], self.rows_of)
        for parts in rows:
            warn_of_windows(parts, stacklevel=3)
        found = [[{**one, 'layers': [*one['layers']]} for one in self.read(parts)] for parts in rows]
        return found if is_list else found[0]

    def windows(self, text: str | tuple[str, str]) -> Iterator[dict[str, Any]]:
        """Returns the windows of one text, as `__call__` does, but computes them and their layers one at a time.

        'layers' is an iterator. A layer of a long window comes in several dicts, each with some of the heads, as
        'heads' says. So the caller needs memory for the weights of a few heads, about 200 MB.
        """
        rows = self.rows_of(text)
        warn_of_windows(rows, stacklevel=3)
        return self.read(rows, bytes_at_once=BYTES_AT_ONCE)

    def rows_of(self, text: Any) -> list[TokenRow]:
        """Returns the rows of a text or of two texts; raises InputError for anything else."""
        check_input(text)
        return self.rows.windows(text)

    def read(self, rows: list[TokenRow], *, bytes_at_once: float = math.inf) -> Iterator[dict[str, Any]]:
        """Yields the windows of a text's rows; a dict of a layer of a long row has weights of up to this many bytes."""
        config, earlier = self.rows.model.config, list[str]()
        height, *rest = getattr(self.rows, 'image_shape', ()) or (0,)
        image = {'image_shape': (height, math.prod(rest))} if height else {}
        memory = empty_memory(config, 1) if config.memory_length else None
        for row in rows:
            compressed = int((memory.compressed.segments_BM != 0).sum()) if isinstance(memory, CompressedMemory) else 0
            keys = [COMPRESSED] * compressed + [*earlier, *row.names]
            padded = row.padded(self.rows.padded_length(len(row.ids_L)))
            layers, memory = self.layer_arrays(padded, memory, bytes_at_once)
            parts = (self.without_padding(*one, len(row.names), len(keys)) for one in layers)
            yield {'tokens': row.names, 'key_tokens': keys, 'texts': row.text_numbers, **image, 'layers': parts}
            earlier = [*earlier, *row.names][-config.memory_length :] if config.memory_length else []

    def layer_arrays(
        self, row: PaddedRow, memory: AnyMemory | None, bytes_at_once: float
    ) -> tuple[Iterator[tuple[int, Sequence[int], Arrays]], AnyMemory | None]:
        """Returns the numbers of the chosen layers and heads with their arrays, and the memory after the row."""
        if row.tokens_BL.shape[1] <= AT_ONCE:
            found, memory = compiled_arrays(self.graph, self.params, row, memory, (self.layers, self.heads))
            return ((number, self.heads, arrays) for number, arrays in found.items()), memory
        readings, memory = row_readings(self.rows.model, row, memory)
        chosen = (one for one in readings if one.number in self.layers)
        parts = ((one, heads) for one in chosen for heads in head_groups(one, self.heads, bytes_at_once))
        return ((one.number, heads, head_arrays(one, heads, by_blocks=True)) for one, heads in parts), memory

    def without_padding(
        self, number: int, chosen: Sequence[int], arrays: Arrays, queries: int, keys: int
    ) -> dict[str, Any]:
        """Returns a layer's dict: its arrays without padding at the end and empty memory at the start."""
        arrays = jax.device_get(arrays)
        heads, padded, slots = arrays['weights'].shape
        last = slots - (padded - queries)
        kept = slice(last - keys, last)
        parts = {name: None if x is None else x[:, kept] for name, x in arrays.items() if name in KEY_ARRAYS}
        query, scale, softmax, rounds = (
            arrays[name] for name in ('queries', 'scale', 'softmax_weights', 'hash_rounds')
        )
        weights = arrays['weights'][:, :queries, kept]
        softmax = None if softmax is None else softmax[:, :queries, kept]
        if rounds is not None:
            placed = {name: rounds[name][..., :queries] for name in ('buckets', 'chunks')}
            rounds = placed | {'chunk_count': int(rounds['chunk_count'])}
        return parts | {
            'layer': number,
            'heads': [*chosen[:heads]],
            'weights': weights,
            'queries': None if query is None else query[:, :queries],
            'scale': None if scale is None else float(scale),
            'softmax_weights': softmax,
            'softmax_errors': None if softmax is None else half_distances(weights, softmax),
            'hash_rounds': rounds,
        }


def row_readings(
    model: Encoder | Decoder, row: PaddedRow, memory: AnyMemory | None
) -> tuple[list[LayerReading], AnyMemory | None]:
    """Returns what each layer reads in a row, and the memory after the row."""
    segments = Lengths(row.token_count[None])
    if isinstance(model, Encoder):
        return layer_readings(model, row.tokens_BL, segments, **row.options()), None
    segments_BL = segments.segments(row.tokens_BL.shape[1])
    if memory is None:
        return layer_readings(model, row.tokens_BL, segments_BL), None
    return segment_readings(model, row.tokens_BL, segments_BL, memory)


@functools.partial(jax.jit, static_argnames=('graph', 'chosen'))
def compiled_arrays(
    graph: Any, params: Any, row: PaddedRow, memory: AnyMemory | None, chosen: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[dict[int, Arrays], AnyMemory | None]:
    """Returns the arrays of the chosen layers and heads, by layer, and the memory after the row."""
    layers, heads = chosen
    readings, memory = row_readings(nnx.merge(graph, params), row, memory)
    return {one.number: head_arrays(one, heads) for one in readings if one.number in layers}, memory


def head_arrays(reading: LayerReading, chosen: Sequence[int], *, by_blocks: bool = False) -> Arrays:
    """Returns the arrays of a layer's chosen heads, those of the window's dict.

    With `by_blocks`, the weights are a NumPy array, and the device holds those of only some queries at a time.
    """
    query_BLHK, key_BMGK = reading.operands.query_BLHK, reading.operands.key_BMHK
    heads = np.array([head for head in chosen if head < query_BLHK.shape[2]], np.int32)
    access = reading.mechanism.key_access
    weights_of: Any = weights_of_heads if by_blocks else lambda one, heads: one.weights()[0, heads]
    softmax, rounds = reading.estimated_softmax(heads), reading.hash_rounds()
    return {
        'weights': weights_of(reading, heads),
        'queries': query_BLHK[0].swapaxes(0, 1)[heads] if access.queries else None,
        'keys': key_BMGK[0].swapaxes(0, 1)[heads * key_BMGK.shape[2] // query_BLHK.shape[2]] if access.keys else None,
        'scale': reading.logit_scale,
        'value_norms': reading.value_norms()[0, heads],
        'softmax_weights': None if softmax is None else weights_of(softmax, np.arange(len(heads))),
        'hash_rounds': None if rounds is None else placed_tokens(*rounds, heads),
    }


def head_groups(reading: LayerReading, heads: Sequence[int], most: float) -> Iterator[Sequence[int]]:
    """Yields the heads of a layer in groups whose weights have up to `most` bytes together, but at least one head."""
    queries, keys = reading.operands.query_BLHK.shape[1], reading.operands.key_BMHK.shape[1]
    heads = [head for head in heads if head < reading.operands.query_BLHK.shape[2]]  # layers may have fewer heads
    matrices = 1 if reading.estimated_softmax(np.arange(1)) is None else 2
    count = int(max(1, min(most / (4 * queries * keys * matrices), len(heads))))
    for start in range(0, len(heads), count):
        yield heads[start : start + count]


def placed_tokens(buckets_BHTL: Array, chunks_BHTL: Array, chunk_count: int, heads: np.ndarray) -> Arrays:
    """Returns the entry 'hash_rounds' of a layer's dict, for some heads."""
    return {'buckets': buckets_BHTL[0, heads], 'chunks': chunks_BHTL[0, heads], 'chunk_count': chunk_count}


def half_distances(weights_HLM: np.ndarray, others_HLM: np.ndarray) -> np.ndarray:
    """Returns each head's total variation distance between two arrays of weights, the mean over the queries."""
    pairs = zip(weights_HLM, others_HLM, strict=True)  # head by head, to save memory
    return np.array([np.abs(weights_LM - others_LM).sum(-1).mean() / 2 for weights_LM, others_LM in pairs])


def weights_of_heads(reading: LayerReading, heads: np.ndarray) -> np.ndarray:
    """Returns the weights of some heads, float32 [heads, L, M], computed by blocks of queries or head by head."""
    queries, keys = reading.operands.query_BLHK.shape[1], reading.operands.key_BMHK.shape[1]
    weights, first = np.empty((len(heads), queries, keys), np.float32), 0
    if reading.by_heads:
        head_weights = jax.jit(reading.head_weights)
        for place, head in enumerate(heads):
            weights[place] = head_weights(head)[0]
        return weights
    for block in reading.weight_blocks():
        weights[:, first : first + block.shape[2]] = block[0, heads]
        first += block.shape[2]
    return weights


def open_attention_pipeline(path: Path, checkpoint: str, options: dict[str, Any]) -> AttentionPipeline:
    """Returns the pipeline `attention` of the encoder or language model in a folder.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint, as in `open_pretrained`.
        options: `layers` and `heads`, numbers from 0, and `length`, most tokens of a window.

    Raises:
        InputError: the model has no attention weights, is an encoder-decoder, or lacks such a layer or head.
    """
    known = ('layers', 'heads', 'length')
    if unknown := sorted(options.keys() - {*known}):
        raise InputError(f'unknown options: {", ".join(unknown)}; known: {", ".join(known)}')
    length = options.get('length', 0)
    require_at_least(0, 'length', length)
    rows = open_rows(path, checkpoint, length)
    return AttentionPipeline(rows, layers=options.get('layers'), heads=options.get('heads'))


def open_rows(path: Path, checkpoint: str, length: int) -> EncoderRows | DecoderRows:
    """Returns the encoder or the language model in a folder, with its tokenizer."""
    values = read_config_json(path)
    if values.get('task') == LANGUAGE_MODELLING:
        return DecoderRows(open_language_model(path, checkpoint, images=True), length)
    pretrained = open_pretrained(path, '' if checkpoint == LAST and 'task' not in values else checkpoint)
    if pretrained.problem == LANGUAGE_MODELLING:
        return DecoderRows(imported_language_model(path, pretrained), length)
    return EncoderRows(pretrained, path, length)


def check_length(config: ModelConfig, length: int) -> None:
    """Raises InputError if the layers have no attention weights, or the model has fewer than `length` positions."""
    check_has_weights(config)
    limit = config.position_limit
    if limit is not None and length > limit:
        raise InputError(f'length is {length}; the model has {limit} positions')


def warn_of_windows(rows: list[TokenRow], *, stacklevel: int) -> None:
    """Warns if a text has several windows."""
    if len(rows) > 1:
        said = f'a text is read in {len(rows)} windows of up to {len(rows[0].ids_L)} tokens'
        warnings.warn(said, stacklevel=stacklevel)


def bucket(count: int, most: int) -> int:
    """Returns the first of `BUCKETS` that holds `count` tokens; `most` if none does or the bucket is longer."""
    return min(most, next((size for size in BUCKETS if size >= count), most))


def token_name(units: TextUnits, id_1: np.ndarray) -> str:
    """Returns a token as text; for a part of a character, its bytes, such as <E2 82>."""
    name = units.decode(id_1)
    if NO_CHARACTER not in name:
        return name
    number = int(id_1[0])
    if not isinstance(units, TokenizerUnits):
        return f'<{number:02X}>'
    piece = units.tokenizer.id_to_token(number) or name
    bytes_of = byte_of_character()
    is_byte_level = all(character in bytes_of for character in piece)
    return f'<{" ".join(f"{bytes_of[character]:02X}" for character in piece)}>' if is_byte_level else piece


@functools.cache
def byte_of_character() -> dict[str, int]:
    """Returns the byte of each character in the tokens of byte-level tokenizers (Radford et al. 2019, GPT-2's code)."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


def text_numbers(is_special: Sequence[int], first: int) -> list[int | None]:
    """Returns the number of each token's text, None for special tokens; text 0 has `first` tokens, text 1 the rest."""
    counts = itertools.count()
    return [None if special else int(next(counts) >= first) for special in is_special]


def checked_numbers(what: str, numbers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Returns the numbers of layers or heads, all of them for None; raises InputError if there is no such number."""
    if numbers is None:
        return tuple(range(count))
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or not numbers:
        raise InputError(f'{what}s is {numbers!r}; it must be a list of numbers')
    for number in numbers:
        if type(number) is not int or not 0 <= number < count:
            raise InputError(f'there is no {what} {number!r}; the model has {what}s 0 to {count - 1}')
    return tuple(sorted({*numbers}))


def check_input(value: Any) -> None:
    """Raises InputError unless the value is a text or a tuple of two texts."""
    if isinstance(value, tuple) and len(value) == 2:
        for text in value:
            check_text(text)
        return
    check_text(value)
