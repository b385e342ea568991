"""Texts as lists of sentences, each a row of its own for the encoder of a hierarchical model."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.examples.text_encoder import TextEncoder, ids_of
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.overlong_texts import Ids

LINE_BREAK = re.compile(r'<br\s*/?>', re.IGNORECASE)  # as reviews from the web have it


@dataclasses.dataclass(frozen=True)
class SentenceRule:
    """What `policy` makes of a text with too many sentences, or too long ones.

    Attributes:
        policy: of config/examples.py. 'windows' lose nothing: a sentence goes on in the next place, and a text with
            more sentences than a row becomes several rows, side by side.
        sentences: most of a row.
        length: most tokens of a sentence, special ones included.
    """

    policy: str
    sentences: int
    length: int

    @property
    def limit(self) -> str:
        """The most that a row has, for messages."""
        return f'examples.sentences {self.sentences} sentences, or data.length {self.length} tokens in one,'

    def is_overlong(self, sentences: Sequence[Ids], added: int) -> bool:
        """Whether a text has too many sentences or a too long one; `added` special tokens stand in each."""
        return len(sentences) > self.sentences or max(map(len, sentences)) + added > self.length

    def rows(self, sentences: Sequence[Ids], added: int, where: str) -> list[list[Ids]]:
        """The rows that a text becomes, each a list of sentences: one where it fits, else by the policy.

        Raises:
            InputError: the policy is 'error'.
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


def sentences_of(text: str) -> list[str]:
    """A text's sentences in order; a line break of HTML is one of the text."""
    return split_sentences(LINE_BREAK.sub('\n', text))


def sentence_ids(encoder: TextEncoder, texts: Sequence[str]) -> list[list[Ids]]:
    """The ids of each text's sentences, without special tokens; those without a token are left out, but for one."""
    split = [sentences_of(text) for text in texts]
    ids = iter(ids_of(encoder, [sentence for sentences in split for sentence in sentences]))
    found = [[next(ids) for _ in sentences] for sentences in split]
    return [[one for one in sentences if len(one)] or [np.zeros(0, np.int32)] for sentences in found]


def check_borders(texts: Sequence[Sequence[Ids]], count: int) -> None:
    """Raises InputError where every text is one sentence: there are no borders for a second level to read."""
    if texts and max(map(len, texts)) < 2:
        raise InputError(
            f'examples.sentences is {count}, but none of the {len(texts)} texts of examples.train has a sentence '
            'border: each is one sentence'
        )
