"""Sources of a search whose words a tokenizer does not know: how many tokens, and which words they were."""

from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.tokenizers.special_tokens import role_names

NAMED = 5  # words in a message


class UnknownTokens:
    """Counts the unknown tokens of texts; always 0 if the tokenizer has no unknown token.

    Args:
        parts: the pieces of a text, each with the part of the text that it stands for.
        vocabulary: has the ids of the pieces.
    """

    def __init__(self, parts: Callable[[str], list[tuple[str, str]]], vocabulary: Tokenizer) -> None:
        self.parts, self.vocabulary = parts, vocabulary
        name = role_names(vocabulary).get('unknown')
        self.id = None if name is None else vocabulary.token_to_id(name)
        self.count = self.total = 0
        self.words: dict[str, None] = {}  # the first ones, each once

    def note(self, texts: Sequence[str], tokens: Sequence[np.ndarray]) -> None:
        """Counts the unknown tokens of texts; `tokens` are the ids of each text, without special tokens."""
        self.total += sum(map(len, tokens))
        for text, ids in zip(texts, tokens, strict=True):
            found = int((ids == self.id).sum())
            self.count += found
            if found and len(self.words) < NAMED:
                self.name(text)

    def name(self, text: str) -> None:
        """Keeps the unknown words of a text, until there are `NAMED` words."""
        for piece, part in self.parts(text):
            if self.vocabulary.token_to_id(piece) in (None, self.id) and len(self.words) < NAMED:
                self.words[part.strip()] = None

    def take(self) -> str:
        """A line about the texts since the last call; '' where no token was unknown."""
        count, total, words = self.count, self.total, ', '.join(map(repr, self.words))
        such = f'such as {words}' if count > NAMED == len(self.words) else words
        self.count, self.total, self.words = 0, 0, {}
        return f'{count:,} of {total:,} tokens of the sources are unknown to the tokenizer: {such}' if count else ''
