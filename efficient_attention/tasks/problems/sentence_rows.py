"""Splits texts into sentences, which a hierarchical model encodes as separate rows."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.examples.text_encoder import TextEncoder, ids_of
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.overlong_texts import Ids

LINE_BREAK = re.compile(r'<br\s*/?>', re.IGNORECASE)  # HTML line breaks, as in web reviews


@dataclasses.dataclass(frozen=True)
class SentenceLengthPolicy:
    """The rule for texts with too many sentences, or with sentences that have too many tokens.

    Attributes:
        policy: `examples.overlong`, see config/examples.py. 'windows' loses nothing: a long sentence continues as the
            next sentence, and a text with too many sentences becomes several rows.
        sentences: most sentences of a row.
        length: most tokens of a sentence, special tokens included.
    """

    policy: str
    sentences: int
    length: int

    @property
    def limit_in_words(self) -> str:
        """Returns the limit of sentences and tokens of a text, in words for messages."""
        return f'examples.sentences {self.sentences} sentences, or data.length {self.length} tokens in one,'

    def is_overlong(self, sentences: Sequence[Ids], added: int) -> bool:
        """Returns whether a text has too many sentences or a sentence with too many tokens.

        `added` is the number of special tokens per sentence.
        """
        return len(sentences) > self.sentences or max(map(len, sentences)) + added > self.length

    def fit_to_rows(self, sentences: Sequence[Ids], added: int, where: str) -> list[list[Ids]]:
        """Returns the rows made from a text, each a list of sentences.

        A text that fits makes one row; otherwise the policy decides.

        Raises:
            InputError: the text does not fit and the policy is 'error'.
        """
        if not self.is_overlong(sentences, added):
            return [list(sentences)]
        room = self.length - added
        if self.policy == 'skip':
            return []
        if self.policy == 'error':
            longest = max(map(len, sentences))
            raise InputError(
                f'{where}: {len(sentences)} sentences, the longest of {longest} tokens; examples.sentences is '
                f'{self.sentences}, and data.length {self.length} leaves room for {room}'
            )
        if self.policy == 'truncate':
            return [[ids[:room] for ids in sentences[: self.sentences]]]
        parts = [ids[start : start + room] for ids in sentences for start in range(0, len(ids), room)]
        return [parts[start : start + self.sentences] for start in range(0, len(parts), self.sentences)]


def split_into_sentences(text: str) -> list[str]:
    """Returns the sentences of a text in order; an HTML line break counts as a line break."""
    return split_sentences(LINE_BREAK.sub('\n', text))


def sentence_token_ids(encoder: TextEncoder, texts: Sequence[str]) -> list[list[Ids]]:
    """Returns the token ids of each sentence of each text, without special tokens.

    Sentences without tokens are left out, but a text always keeps at least one sentence.
    """
    split = [split_into_sentences(text) for text in texts]
    ids = iter(ids_of(encoder, [sentence for sentences in split for sentence in sentences]))
    found = [[next(ids) for _ in sentences] for sentences in split]
    return [[one for one in sentences if len(one)] or [np.zeros(0, np.int32)] for sentences in found]


def check_several_sentences(texts: Sequence[Sequence[Ids]], count: int) -> None:
    """Raises InputError if every text is a single sentence, so that a hierarchical model has nothing to combine."""
    if texts and max(map(len, texts)) < 2:
        raise InputError(
            f'examples.sentences is {count}, but none of the {len(texts)} texts of examples.train has a sentence '
            'border: each is one sentence'
        )
