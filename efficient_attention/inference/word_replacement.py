"""Other texts for a text, by words that fit in their place: augmentation of training rows.

Source: Jiao et al. 2019 (TinyBERT), arXiv 1909.10351, algorithm 1. A word of one piece gets what a masked model finds
most probable in its place, where it reads the text with the word masked and then the whole text; a word of several
pieces gets its nearest neighbours among vectors (word_vectors.py). Words that hold more than letters and function
words stay; so do markers such as '[E1]' and '<hl>'.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from efficient_attention.config.checks import check_within
from efficient_attention.data.batching.random_streams import Stream, random_stream
from efficient_attention.data.tokenizers.reading import reader_of
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.word_vectors import TokenTable, WordVectors, words_among_tokens

# A run of letters that no apostrophe joins to others: of "don't" and "n't" nothing may be replaced.
WHOLE_WORD = re.compile(r"(?<![^\W\d_])(?<!\w['’])[^\W\d_]+(?![^\W\d_])(?!['’]\w)")
MARKER = re.compile(r'\[[^\s\[\]]+\]|<[^\s<>]+>')  # '[E1]' or '<hl>': a token that marks something, not a word
ROWS, STEP = 64, 16  # rows that a model reads at a time, and what their lengths are rounded up to
FUNCTION_WORDS = frozenset(
    'a about above after again against all am an and any are as at be because been before being below between '
    'both but by can could did do does doing don down during each few for from further had has have having he her '
    'here hers herself him himself his how i if in into is it its itself just me more most my myself no nor not '
    'now of off on once only or other our ours ourselves out over own s same she should so some such t than that '
    'the their theirs them themselves then there these they this those through to too under until up very was we '
    'were what when where which while who whom why will with would you your yours yourself yourselves '
    # what is left of contractions that are written apart: "ca n't", "we 've"
    'ain aren ca couldn d didn doesn hadn hasn haven isn ll m ma mightn mustn needn re sha shan shouldn ve wasn weren '
    'wo won wouldn y'.split()
)


class Word(NamedTuple):
    """A word that may be replaced: its place among the words of a text, and what may stand there."""

    place: int
    candidates: tuple[str, ...]


class WordReplacer:
    """Proposals for the words of texts, and texts made of them.

    Args:
        filler: a masked model; on words, so that its vocabulary need not be the trained model's.
        vectors: for words of several pieces; None = its own token table.
        candidates: most proposals for a word.

    Raises:
        InputError: `candidates` is below 1.
    """

    def __init__(self, filler: MaskFiller, vectors: WordVectors | None = None, *, candidates: int = 15) -> None:
        check_within('candidates', candidates, 1)
        self.filler, self.count, self.reader = filler, candidates, reader_of(filler.tokenizer)
        self.tokens, self.is_word = words_among_tokens(filler.tokenizer, filler.vocabulary)
        self.vectors = vectors or TokenTable(filler.tokenizer, filler.vocabulary, filler.model.encoder)

    def proposals(self, texts: Sequence[str]) -> list[list[Word]]:
        """For each text its words that may be replaced, with what may stand in their place."""
        found: list[list[Word]] = [[] for _ in texts]
        asked: list[tuple[int, int, str, list[int], int]] = []  # text, place, word, ids, where the mask is
        for number, text in enumerate(texts):
            markers = [marker.span() for marker in MARKER.finditer(text)]
            for place, match in enumerate(WHOLE_WORD.finditer(text)):
                word = match[0]
                is_marker = any(start < match.start() < end for start, end in markers)
                if is_marker or word.lower() in FUNCTION_WORDS:
                    continue
                ids = self.reader.encode(f' {word}', add_special_tokens=False).ids
                if len(ids) == 1 and ids[0] not in self.filler.vocabulary.special:
                    row = self.masked_row(text, match)
                    asked += [(number, place, word, *row)] if row else []
                elif near := self.nearest(word):
                    found[number].append(Word(place, near))
        for (number, place, word, _, _), proposed in zip(asked, self.most_probable(asked), strict=True):
            others = tuple(other for other in proposed if other.lower() != word.lower())[: self.count]
            found[number] += [Word(place, others)] if others else []
        return [sorted(words) for words in found]

    def nearest(self, word: str) -> tuple[str, ...]:
        """The neighbours of a word of several pieces; none where the vectors do not have it."""
        vector_E = self.vectors.of_word(word)
        return () if vector_E is None else self.vectors.neighbours(vector_E, self.count, word.lower())

    def masked_row(self, text: str, match: re.Match[str]) -> tuple[list[int], int] | None:
        """The ids of the text with a word masked, then those of the whole text, and the mask's place.

        Without the second text where both are too long, and None where the first is.
        """
        vocabulary, encode = self.filler.vocabulary, self.reader.encode
        before = encode(text[: match.start()], add_special_tokens=False).ids
        after = encode(text[match.end() :], add_special_tokens=False).ids
        masked = [vocabulary.cls, *before, vocabulary.mask, *after, vocabulary.sep]
        both = [*masked, *encode(text, add_special_tokens=False).ids, vocabulary.sep]
        row = next((row for row in (both, masked) if len(row) <= self.filler.length), None)
        return None if row is None else (row, 1 + len(before))

    def most_probable(self, asked: Sequence[tuple[int, int, str, list[int], int]]) -> list[list[str]]:
        """The words that the model finds most probable in each place, one more than are asked for."""
        order = sorted(range(len(asked)), key=lambda number: len(asked[number][3]))
        found: list[list[str]] = [[] for _ in asked]
        for start in range(0, len(order), ROWS):
            some = order[start : start + ROWS]
            rows = [(asked[number][3], asked[number][4]) for number in some]
            for number, logits_V in zip(some, self.logits(rows), strict=True):
                logits_V = np.where(self.is_word, logits_V[: len(self.is_word)], -np.inf)
                best = np.argpartition(-logits_V, min(self.count + 1, len(logits_V) - 1))[: self.count + 1]
                best = best[np.argsort(-logits_V[best], kind='stable')]
                found[number] = [self.tokens[id] for id in best if np.isfinite(logits_V[id])]
        return found

    def logits(self, rows: Sequence[tuple[list[int], int]]) -> np.ndarray:
        """float32 [B, V] at the place of each row's mask; few shapes, so that few programs are compiled."""
        longest = max(len(ids) for ids, _ in rows)
        length = min(-(-longest // STEP) * STEP, self.filler.length)
        tokens_BL = np.full((ROWS, length), self.filler.vocabulary.pad, np.int32)
        segments_BL, places_BP = np.zeros((ROWS, length), np.int32), np.zeros((ROWS, 1), np.int32)
        for number, (ids, place) in enumerate(rows):
            tokens_BL[number, : len(ids)], segments_BL[number, : len(ids)] = ids, 1
            places_BP[number] = place
        logits_BPV = self.filler.masked_logits(self.filler.params, tokens_BL, segments_BL, places_BP)
        return np.asarray(logits_BPV)[: len(rows), 0]


def new_texts(
    texts: Sequence[str], words: Sequence[Sequence[Word]], *, copies: int, share: float, seed: int, row: int
) -> Iterator[tuple[str, ...]]:
    """Other texts for the text or both texts of a row, at most `copies`, none twice and none that is the row itself.

    Args:
        texts: of the row, each replaced apart.
        words: of each text, as `WordReplacer.proposals` gives them.
        copies: tries.
        share: probability that a word is replaced, by each of its proposals alike.
        seed: of all rows.
        row: number of the row, from which and from the seed alone its draws come.
    """
    rng = random_stream(seed, Stream.REPLACED_WORDS, 0, row)
    seen = {tuple(texts)}
    for _ in range(copies):
        made = tuple(replaced(text, some, share, rng) for text, some in zip(texts, words, strict=True))
        if made not in seen:
            seen.add(made)
            yield made


def replaced(text: str, words: Sequence[Word], share: float, rng: np.random.Generator) -> str:
    """The text with some of these words replaced; a capital at the beginning of a word stays."""
    chosen: dict[int, str] = {}
    for place, candidates in words:
        is_replaced, number = rng.random() < share, int(rng.integers(len(candidates)))
        if is_replaced:
            chosen[place] = candidates[number]
    parts, end = [], 0
    for place, match in enumerate(WHOLE_WORD.finditer(text)):
        if place in chosen:
            new = chosen[place]
            parts += [text[end : match.start()], new.capitalize() if match[0][0].isupper() else new]
            end = match.end()
    return ''.join([*parts, text[end:]])
