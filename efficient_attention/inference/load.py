"""Loads a trained model with its tokenizer, for programs that call the model themselves."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.config.model import ModelConfig
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.pairs.pair_encoder import SourceOrTargetEncoder
from efficient_attention.errors import InputError, require
from efficient_attention.inference.language_models import LanguageModel, imported_language_model, open_language_model
from efficient_attention.inference.per_item_errors import map_items
from efficient_attention.inference.pretrained_models import (
    pretrained_encoder,
    pretrained_module,
    pretrained_text_encoder,
)
from efficient_attention.inference.translator import make_pretrained_pair_encoder, structural_ids
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, TEXT_TO_TEXT
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.interop.workdir_import import is_decoder_run
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.workdir import print_plain_log_lines

AnyModel = TypeVar('AnyModel', Encoder, Decoder, EncoderDecoder)


@dataclasses.dataclass(frozen=True)
class LoadedTokenizer:
    """Converts texts to the token ids of a trained model, and back.

    Attributes:
        ids_of_text: returns the token ids of a text, with the special tokens that the model was trained with.
        text_of_ids: returns the text of token ids, without special tokens.
        size: number of token ids; all ids are smaller.
        longest: maximum number of tokens per row; None = no limit.
        pad: id that fills shorter rows.
    """

    ids_of_text: Callable[[str], Sequence[int] | np.ndarray]
    text_of_ids: Callable[[list[int]], str]
    size: int
    longest: int | None = None
    pad: int = 0

    def encode(self, text: str) -> np.ndarray:
        """Returns the token ids of a text, int32 [L]; raises InputError if the input is no text."""
        require(isinstance(text, str), 'text', text, 'a text')
        return np.asarray(self.ids_of_text(text), np.int32)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Returns the token ids and segments of texts, int32 [B, L] each; segments are 1 for tokens, 0 for padding.

        Models accept `Lengths(segments.sum(axis=1))` in place of the segments, which more attention backends support.

        Raises:
            InputError: there are no texts, an entry is no text, or a text has more tokens than the model has positions.
        """
        if isinstance(texts, str) or not len(texts):
            raise InputError('encode_batch needs a list of at least one text')
        rows = map_items(list(texts), self._row)
        tokens_BL = np.full((len(rows), max(map(len, rows))), self.pad, np.int32)
        segments_BL = np.zeros_like(tokens_BL)
        for number, row in enumerate(rows):
            tokens_BL[number, : len(row)], segments_BL[number, : len(row)] = row, 1
        return jnp.asarray(tokens_BL), jnp.asarray(segments_BL)

    def decode(self, ids: Iterable[int] | Array) -> str:
        """Returns the text of token ids [L], without special tokens."""
        return self.text_of_ids(np.asarray([*ids] if not hasattr(ids, 'shape') else ids).tolist())

    def _row(self, text: str) -> np.ndarray:
        row = self.encode(text)
        if not len(row):
            raise InputError('the text is empty')
        if self.longest is not None and len(row) > self.longest:
            raise InputError(f'the text has {len(row)} tokens; the model has {self.longest} positions')
        return row


@dataclasses.dataclass(frozen=True)
class Loaded(Generic[AnyModel]):
    """A trained model, laid out for inference on the first device, with its tokenizer and config.

    Attributes:
        model: an `Encoder`, `Decoder` or `EncoderDecoder`.
        tokenizer: the tokenizer of the model's texts; for an `EncoderDecoder`, of its sources.
        target_tokenizer: the tokenizer of an `EncoderDecoder`'s targets. Each target begins with the start symbol, so
            its tokens [:, :-1] are inputs and its tokens [:, 1:] are labels. For other models, the same as `tokenizer`.
        config: the model's config fields.
    """

    model: AnyModel
    tokenizer: LoadedTokenizer
    target_tokenizer: LoadedTokenizer
    config: ModelConfig


@overload
def load(path: str | Path, kind: None = None, *, checkpoint: str = '') -> Loaded[Any]: ...
@overload
def load(path: str | Path, kind: type[AnyModel], *, checkpoint: str = '') -> Loaded[AnyModel]: ...
def load(path: str | Path, kind: type | None = None, *, checkpoint: str = '') -> Loaded[Any]:
    """Returns the trained model in a workdir or Hugging Face folder, with its tokenizer and config.

    A language model gives a `Decoder` [B, L] -> [B, L, V], a text-to-text model an `EncoderDecoder`. Every other model
    gives its `Encoder` [B, L] -> [B, L, D] without the prediction head. `pipeline` also uses prediction heads.

        loaded = ea.load('runs/quickstart', ea.Encoder)
        tokens, segments = loaded.tokenizer.encode_batch(['A list is a mutable type.'])
        hidden = loaded.model(tokens, segments)

    Args:
        path: a workdir or a Hugging Face folder. Names of a hub are not downloaded.
        kind: the expected class; lets type checkers know the class of the model. None = any.
        checkpoint: a workdir's checkpoint: 'last', 'best', a step or 'average-5', the mean of the last 5; '' = the best
            if one is known, else the last.

    Raises:
        InputError: the folder has no model, no tokenizer or no such checkpoint, or a model of another class.
    """
    print_plain_log_lines()
    path = Path(path)
    if is_decoder_run(path):
        check_model_class(path, Decoder, kind)
        return loaded_decoder(open_language_model(path, checkpoint))
    pretrained = open_pretrained(path, checkpoint)
    if pretrained.problem == LANGUAGE_MODELLING:
        check_model_class(path, Decoder, kind)
        return loaded_decoder(imported_language_model(path, pretrained))
    if pretrained.problem != TEXT_TO_TEXT:
        check_model_class(path, Encoder, kind)
        text_encoder = pretrained_text_encoder(pretrained, path)
        tokenizer = encoder_tokenizer(text_encoder, pretrained.model.position_limit)
        return Loaded(pretrained_encoder(pretrained), tokenizer, tokenizer, pretrained.model)
    check_model_class(path, EncoderDecoder, kind)
    pair_encoder = make_pretrained_pair_encoder(pretrained, path)
    config, limit = pretrained.model, pretrained.model.decoder.position_limit
    model = pretrained_module(lambda rngs: EncoderDecoder(config, rngs=rngs), pretrained)
    source = side_tokenizer(pair_encoder.source, config.source_limit)
    # A target's last token is only a label, so it needs no position.
    target = side_tokenizer(pair_encoder.target, None if limit is None else limit + 1, is_target=True)
    return Loaded(model, source, target, config)


def check_model_class(path: Path, found: type, wanted: type | None) -> None:
    """Raises InputError if a folder's model has another class than wanted."""
    if wanted is not None and found is not wanted:
        raise InputError(f'{path} has a model of the class {found.__name__}, and {wanted.__name__} was asked for')


def loaded_decoder(language_model: LanguageModel) -> Loaded[Decoder]:
    """Returns a language model with its bytes, characters, words or tokenizer pieces as tokens."""
    config, units, graph, params = language_model[:4]
    tokenizer = LoadedTokenizer(
        units.encode, lambda ids: units.decode(np.asarray(ids, np.int64)), units.size, config.position_limit
    )
    return Loaded(nnx.merge(graph, params), tokenizer, tokenizer, config)


def encoder_tokenizer(encoder: TextEncoder, longest: int | None) -> LoadedTokenizer:
    """Returns the tokenizer of an encoder, which puts each text between special tokens, such as [CLS] and [SEP]."""
    return LoadedTokenizer(
        lambda text: encoder.row(encoder.encode([text])[0]).ids,
        lambda ids: encoder.tokenizer.decode(ids, skip_special_tokens=True),
        encoder.size,
        longest,
        encoder.pad,
    )


def side_tokenizer(encoder: SourceOrTargetEncoder, longest: int | None, *, is_target: bool = False) -> LoadedTokenizer:
    """Returns the tokenizer of an encoder-decoder's sources or targets; targets begin with the start symbol."""
    unwritten, start = structural_ids(encoder.tokenizer), [encoder.symbols.start] if is_target else []

    def ids_of_text(text: str) -> Sequence[int]:
        [ids] = encoder.ids([text])
        return [*start, *ids[encoder.reversed_positions(len(ids))].tolist()]

    def text_of_ids(ids: list[int]) -> str:
        ids = ids[len(start) :] if ids[: len(start)] == start else ids
        ordered = np.asarray(ids, np.int64)[encoder.reversed_positions(len(ids))].tolist()
        written = [id for id in ordered if id not in unwritten]
        return encoder.tokenizer.decode(written, skip_special_tokens=False)

    return LoadedTokenizer(ids_of_text, text_of_ids, encoder.tokenizer.get_vocab_size(), longest, encoder.symbols.pad)
