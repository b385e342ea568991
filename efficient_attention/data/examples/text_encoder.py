"""Tokenises texts and pairs of texts, and adds the special tokens of the checkpoint's tokenizer."""

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, models

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of

TEXTS_AT_ONCE = 1024  # number of texts tokenised at once; an encoding takes 100 times as many bytes as its ids


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """A tokenizer and its special ids; encodes texts and builds rows with special tokens.

    `tokenizer` has its template of special tokens ('[CLS] a [SEP] b [SEP]', '<s> a </s></s> b </s>', ...), and neither
    truncates nor pads.
    """

    tokenizer: Tokenizer
    pad: int
    cls: int
    sep: int
    mask: int
    size: int  # number of ids; all ids are smaller
    unknown: int = -1  # id of unknown pieces; -1 = every text can be encoded

    @functools.cached_property
    def plain_text_tokenizer(self) -> Tokenizer:
        """Returns a tokenizer for user texts: a typed '[SEP]' is plain text, and tokens that the checkpoint's author
        added stay whole."""
        return make_plain_text_tokenizer(self.tokenizer)

    def encode(self, texts: list[str]) -> list[Encoding]:
        """Tokenises texts without special tokens; returns encodings with `.ids`, `.offsets` (in characters) and
        `.word_ids`."""
        return self.plain_text_tokenizer.encode_batch(texts, add_special_tokens=False)

    def row(self, first: Encoding, second: Encoding | None = None) -> Encoding:
        """Adds special tokens to an encoded text or pair of texts; returns an encoding with `.ids`, `.type_ids` and
        `.offsets`.

        The offsets of each token refer to its own text. The arguments are not changed.
        """
        copies = copy.deepcopy(first), None if second is None else copy.deepcopy(second)
        return self.tokenizer.post_process(*copies, add_special_tokens=True)

    def special_token_count(self, *, is_pair: bool) -> int:
        """Returns the number of special tokens in a row with one text or with a pair."""
        return self.tokenizer.num_special_tokens_to_add(is_pair)


def text_encoder(path: Path, *, lowercase: bool = True) -> TextEncoder:
    """Returns the encoder of a tokenizer file (tokenizer.json, vocab.txt, *.model); `lowercase` has the same meaning as
    in `load_tokenizer`.

    Raises:
        InputError: as `load_tokenizer`.
    """
    tokenizer = load_tokenizer(path, lowercase=lowercase)
    vocabulary = vocabulary_of(tokenizer, str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return TextEncoder(
        tokenizer,
        pad=vocabulary.pad,
        cls=vocabulary.cls,
        sep=vocabulary.sep,
        mask=vocabulary.mask,
        size=vocabulary.size,
        unknown=vocabulary.unknown,
    )


def unknown_words_note(encoder: TextEncoder, features: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    """Returns a warning, as a list of one line, if the rows have words that are unknown to a whole-word vocabulary;
    otherwise an empty list."""
    if not isinstance(encoder.tokenizer.model, models.WordLevel):
        return []
    count = sum(int((feature['tokens'] == encoder.unknown).sum()) for feature in features)
    return [f'input: {count:,} words are not among the {encoder.size:,} of the tokenizer'] if count else []


def encoding_to_arrays(row: Encoding) -> dict[str, np.ndarray]:
    """Returns the arrays of an encoding: 'tokens' and 'token_types', each int32 [l]."""
    return {'tokens': np.array(row.ids, np.int32), 'token_types': np.array(row.type_ids, np.int32)}


def encode_in_batches(encoder: TextEncoder, texts: Sequence[str], at_once: int = TEXTS_AT_ONCE) -> Iterator[Encoding]:
    """Yields the encoding of each text without special tokens; tokenises `at_once` texts at a time, to limit memory."""
    for start in range(0, len(texts), at_once):
        yield from encoder.encode(list(texts[start : start + at_once]))


def ids_of(encoder: TextEncoder, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text without special tokens, int32 [l]; equal texts share one array."""
    unique = list(dict.fromkeys(texts))
    ids = {
        text: np.array(one.ids, np.int32) for text, one in zip(unique, encode_in_batches(encoder, unique), strict=True)
    }
    return [ids[text] for text in texts]
