"""The pipeline `attention`: what each layer and head of a checkpoint reads in a text."""

import itertools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.attention.request import Lengths
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.text.text_units import TextUnits
from efficient_attention.errors import InputError, require, require_at_least
from efficient_attention.inference.language_models import open_language_model
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
from efficient_attention.models.segment_memory import CompressedMemory, empty_memory
from efficient_attention.models.uneven_stack import layer_sizes

# kinds of fine-tuning whose rows have global tokens: the first token, or also others
MARKED_FIRST = ('classification', 'regression', 'token_classification', 'multiple_choice', *SEVERAL)
MARKED_BY_QUESTION = ('question_answering', 'multi_hop')
COMPRESSED = '<compressed>'  # name of a key that stands for several tokens of a compressed memory
UNREAD = 1024  # tokens per window of a decoder that can read any number


class TokenRow(NamedTuple):
    """The tokens of a window.

    Attributes:
        ids_L: the token ids.
        names: the token of each id, as text.
        texts: the text of each token: 0 or 1, the place in the input; None for special tokens.
        types_L: the token types; None = all 0.
    """

    ids_L: np.ndarray
    names: list[str]
    texts: list[int | None]
    types_L: np.ndarray | None = None


class AttentionPipeline:
    """A pipeline that returns what the layers of an encoder or a decoder read: weights, queries and keys.

    Args:
        layers: numbers of the layers to return, from 0; None = all.
        heads: numbers of the heads to return, from 0; None = all.
        length: most tokens of a window; 0 = as many as the model reads.
    """

    model: Encoder | Decoder

    def __init__(
        self, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None, length: int = 0
    ) -> None:
        config = self.model.config
        check_has_weights(config)
        most = max(heads_of for heads_of, _ in layer_sizes(config))
        self.layers = checked_numbers('layer', layers, config.layers)
        self.heads = checked_numbers('head', heads, most)
        limit = config.position_limit
        require_at_least(0, 'length', length)
        if limit is not None and length > limit:
            raise InputError(f'length is {length}; the model has {limit} positions')
        self.length = length

    def windows(self, text: str | tuple[str, str]) -> list[TokenRow]:
        """Returns the windows of a text or of two texts; raises InputError if two texts do not fit one window."""
        raise NotImplementedError

    def readings(self, rows: list[TokenRow]) -> list[tuple[list[str], list[LayerReading]]]:
        """Returns the names of the keys of each window, and what each layer reads there."""
        raise NotImplementedError

    def __call__(self, inputs: Any) -> Any:
        """Returns the windows of a text or of a tuple of two texts; for a list, a list of these.

        The two texts of a tuple are a pair for an encoder, and a prompt with its continuation for a decoder. A window
        is a dict:

            'tokens'      the L tokens, as texts; each of them is a query
            'key_tokens'  the M tokens that are read: the same, or with segment memory those of earlier windows first;
                          '<compressed>' stands for several tokens
            'texts'       the text of each token: 0 or 1, the place in the tuple; None for special tokens
            'layers'      a dict for each chosen layer: 'layer' and 'heads', numbers from 0; the arrays 'weights'
                          [heads, L, M], float32, and 'queries' [heads, L, K] and 'keys' [heads, M, K], as the layer
                          hands them to `attend`; None if its mechanism reads no queries or no keys

        A long text has several windows, and a UserWarning says so.
        """
        if not isinstance(inputs, list):
            return self([inputs])[0]
        map_items(inputs, check_input)
        found = []
        for rows in map_items(inputs, self.windows):
            if len(rows) > 1:
                warnings.warn(
                    f'a text is read in {len(rows)} windows of up to {len(rows[0].ids_L)} tokens', stacklevel=2
                )
            parts = zip(rows, self.readings(rows), strict=True)
            found.append([self._window(row, keys, readings) for row, (keys, readings) in parts])
        return found

    def _window(self, row: TokenRow, keys: list[str], readings: list[LayerReading]) -> dict[str, Any]:
        size = len(row.names), len(keys)
        chosen = [self.layer_arrays(one, *size) for one in readings if one.number in self.layers]
        return {'tokens': row.names, 'key_tokens': keys, 'texts': row.texts, 'layers': chosen}

    def layer_arrays(self, reading: LayerReading, queries: int, keys: int) -> dict[str, Any]:
        """Returns the arrays of a layer's chosen heads, without padding at the end and empty memory at the start."""
        query_BLHK, key_BMGK = reading.operands.query_BLHK, reading.operands.key_BMHK
        last = key_BMGK.shape[1] - (query_BLHK.shape[1] - queries)
        heads = [head for head in self.heads if head < query_BLHK.shape[2]]
        of_keys = [head * key_BMGK.shape[2] // query_BLHK.shape[2] for head in heads]
        weights = [np.asarray(block)[0, heads, :, last - keys : last] for block in reading.weight_blocks()]
        access = reading.mechanism.key_access
        return {
            'layer': reading.number,
            'heads': heads,
            'weights': np.concatenate(weights, axis=1)[:, :queries],
            'queries': np.asarray(query_BLHK)[0, :queries, heads] if access.queries else None,
            'keys': np.asarray(key_BMGK)[0, last - keys : last, of_keys] if access.keys else None,
        }


class EncoderAttentionPipeline(AttentionPipeline):
    """The pipeline `attention` of a checkpoint with an encoder."""

    def __init__(self, pretrained: Pretrained, path: Path, **options: Any) -> None:
        check_encoder(path, pretrained)
        self.encoder: TextEncoder = pretrained_text_encoder(pretrained, path)
        self.model = pretrained_encoder(pretrained)
        super().__init__(**options)
        self.length = self.length or row_length(pretrained)
        require(self.length > 2, 'length', self.length, 'at least 3 for an encoder')
        has_global = self.model.config.global_tokens > 0
        if has_global and pretrained.problem in MARKED_BY_QUESTION:
            raise InputError(f'{path} marks the tokens of questions as global; attention does not build its rows yet')
        self.is_first_global = has_global and pretrained.problem in MARKED_FIRST

    def windows(self, text: str | tuple[str, str]) -> list[TokenRow]:
        """Returns the windows of a text or of a pair."""
        texts = [text] if isinstance(text, str) else list(text)
        first, *second = self.encoder.encode(texts)
        room = self.length - self.encoder.special_token_count(is_pair=bool(second))
        if second:
            count = len(first.ids) + len(second[0].ids)
            if count > room:
                raise InputError(f'the pair has {count} tokens; a window has room for {room}')
            encodings = [self.encoder.row(first, second[0])]
        else:
            first.truncate(room)
            encodings = [self.encoder.row(window) for window in (first, *first.overflowing)]
        has_types = self.model.config.token_types > 1
        return [
            TokenRow(
                np.asarray(one.ids, np.int32),
                one.tokens,
                texts_of(one.special_tokens_mask, len(first.ids)),
                np.asarray(one.type_ids, np.int32) if has_types else None,
            )
            for one in encodings
        ]

    def readings(self, rows: list[TokenRow]) -> list[tuple[list[str], list[LayerReading]]]:
        """Returns what each layer reads; the first token is global if fine-tuning marked it so."""
        found = []
        for row in rows:
            options: dict[str, Any] = {}
            if row.types_L is not None:
                options['token_types_BL'] = jnp.asarray(row.types_L)[None]
            if self.is_first_global:
                options['is_global_BL'] = jnp.arange(len(row.ids_L))[None] == 0
            segments = Lengths(jnp.asarray([len(row.ids_L)], jnp.int32))
            found.append((row.names, layer_readings(self.model, jnp.asarray(row.ids_L)[None], segments, **options)))
        return found


class DecoderAttentionPipeline(AttentionPipeline):
    """The pipeline `attention` of a language model."""

    def __init__(self, path: Path, checkpoint: str, **options: Any) -> None:
        opened = open_language_model(path, checkpoint)
        self.units: TextUnits = opened.units
        self.model: Decoder = nnx.merge(opened.graph, opened.params)
        super().__init__(**options)
        rate = self.model.config.compression_rate if self.model.config.compressed_length else 1
        require(self.length % rate == 0, 'length', self.length, f'a multiple of model.compression_rate, {rate}')
        default = self.model.config.position_limit or opened.length or UNREAD
        self.length = self.length or default - default % rate

    def windows(self, text: str | tuple[str, str]) -> list[TokenRow]:
        """Returns the windows of a text, or of a prompt with its continuation."""
        prompt, whole = ('', text) if isinstance(text, str) else (text[0], ''.join(text))
        ids = self.units.encode(whole)
        seam = len(os.path.commonprefix([self.units.encode(prompt).tolist(), ids.tolist()]))  # of any two lists
        names = [self.units.decode(ids[place : place + 1]) for place in range(len(ids))]
        texts: list[int | None] = [int(bool(prompt) and place >= seam) for place in range(len(ids))]
        parts = [slice(start, start + self.length) for start in range(0, len(ids), self.length)]
        return [TokenRow(ids[part].astype(np.int32), names[part], texts[part]) for part in parts]

    def readings(self, rows: list[TokenRow]) -> list[tuple[list[str], list[LayerReading]]]:
        """Returns what each layer reads, in the memory too if the model has one."""
        config = self.model.config
        if not config.memory_length:
            return [
                (
                    row.names,
                    layer_readings(self.model, jnp.asarray(row.ids_L)[None], jnp.ones((1, len(row.ids_L)), jnp.int32)),
                )
                for row in rows
            ]
        memory, names, found = empty_memory(config, 1), list[str](), []
        for row in rows:
            count = len(row.ids_L)
            padding = -count % config.compression_rate if config.compressed_length else 0
            ids_L = np.pad(row.ids_L, (0, padding))
            segments_BL = (jnp.arange(len(ids_L))[None] < count).astype(jnp.int32)
            compressed = memory.compressed.segments_BM if isinstance(memory, CompressedMemory) else np.zeros(0)
            keys = [COMPRESSED] * int((compressed != 0).sum()) + [*names, *row.names]
            readings, memory = segment_readings(self.model, jnp.asarray(ids_L)[None], segments_BL, memory)
            found.append((keys, readings))
            names = [*names, *row.names][-config.memory_length :]
        return found


def open_attention_pipeline(path: Path, checkpoint: str, options: dict[str, Any]) -> AttentionPipeline:
    """Returns the pipeline `attention` of the encoder or language model in a folder.

    Raises:
        InputError: the model has no attention weights, is an encoder-decoder, or lacks such a layer or head.
    """
    known = ('layers', 'heads', 'length')
    if unknown := sorted(options.keys() - {*known}):
        raise InputError(f'unknown options: {", ".join(unknown)}; known: {", ".join(known)}')
    if read_config_json(path).get('task') == LANGUAGE_MODELLING:
        return DecoderAttentionPipeline(path, checkpoint, **options)
    pretrained = open_pretrained(path, checkpoint)
    if pretrained.problem == LANGUAGE_MODELLING:
        return DecoderAttentionPipeline(path, checkpoint, **options)
    return EncoderAttentionPipeline(pretrained, path, **options)


def texts_of(is_special: Sequence[int], first: int) -> list[int | None]:
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
