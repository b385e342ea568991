"""Replaces words of a text with plausible other words, to augment training data.

Source: Jiao et al. 2019 (TinyBERT), arXiv 1909.10351, algorithm 1. For a word of one piece, a masked language model
proposes the most probable words. It reads the text with the word masked, followed by the whole text. For a word of
several pieces, the proposals are its nearest neighbours among word vectors (word_neighbours.py). Function words, words
with anything besides letters, and markers such as '[E1]' and '<hl>' stay as they are.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.word_neighbours import TokenTableVectors, WordVectors, words_among_tokens

# A whole word: letters that no apostrophe joins to other letters, so that no part of "don't" is replaced.
WHOLE_WORD = re.compile(r"(?<![^\W\d_])(?<!\w['’])[^\W\d_]+(?![^\W\d_])(?!['’]\w)")
MARKER = re.compile(r'\[[^\s\[\]]+\]|<[^\s<>]+>')  # a marker such as '[E1]' or '<hl>', which stays unchanged
ROWS, STEP = 64, 16  # rows per model call; row lengths are rounded up to a multiple of `STEP`
FUNCTION_WORDS = frozenset(
    'a about above after again against all am an and any are as at be because been before being below between '
    'both but by can could did do does doing don down during each few for from further had has have having he her '
    'here hers herself him himself his how i if in into is it its itself just me more most my myself no nor not '
    'now of off on once only or other our ours ourselves out over own s same she should so some such t than that '
    'the their theirs them themselves then there these they this those through to too under until up very was we '
    'were what when where which while who whom why will with would you your yours yourself yourselves '
    # Parts of contractions, because some tokenizations split them, such as "ca n't" and "we 've".
    'ain aren ca couldn d didn doesn hadn hasn haven isn ll m ma mightn mustn needn re sha shan shouldn ve wasn weren '
    'wo won wouldn y'.split()
)


class ReplaceableWord(NamedTuple):
    """A word that can be replaced: its index among the words of the text, and the proposed replacements."""

    place: int
    candidates: tuple[str, ...]


class WordReplacer:
    """Proposes replacements for the words of texts, from a masked language model and word vectors.

    Args:
        filler: a masked language model; proposals are words, so its vocabulary may differ from the trained model's.
        vectors: word vectors for words of several pieces; None = the filler's token table.
        candidates: maximum number of proposals per word.

    Raises:
        InputError: `candidates` is below 1.
    """

    def __init__(self, filler: MaskFiller, vectors: WordVectors | None = None, *, candidates: int = 15) -> None:
        check_in_interval('candidates', candidates, 1)
        self.filler, self.count, self.reader = filler, candidates, make_plain_text_tokenizer(filler.tokenizer)
        self.tokens, self.is_word = words_among_tokens(filler.tokenizer, filler.vocabulary)
        self.vectors = vectors or TokenTableVectors(filler.tokenizer, filler.vocabulary, filler.model.encoder)

    def propose_replacements(self, texts: Sequence[str]) -> list[list[ReplaceableWord]]:
        """Returns, for each text, the words that can be replaced, each with its proposed replacements."""
        found: list[list[ReplaceableWord]] = [[] for _ in texts]
        # Inputs for the masked language model: text number, word index, word, token ids, mask position.
        asked: list[tuple[int, int, str, list[int], int]] = []
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
                elif near := self.nearest_words(word):
                    found[number].append(ReplaceableWord(place, near))
        for (number, place, word, _, _), proposed in zip(asked, self.most_probable_words(asked), strict=True):
            others = tuple(other for other in proposed if other.lower() != word.lower())[: self.count]
            found[number] += [ReplaceableWord(place, others)] if others else []
        return [sorted(words) for words in found]

    def nearest_words(self, word: str) -> tuple[str, ...]:
        """Returns the words whose vectors are nearest to the vector of a word; () if the word has no vector.

        Words that the tokenizer splits into several tokens get their replacements in this way.
        """
        vector_E = self.vectors.vector_of_word(word)
        return () if vector_E is None else self.vectors.neighbours(vector_E, self.count, word.lower())

    def masked_row(self, text: str, match: re.Match[str]) -> tuple[list[int], int] | None:
        """Returns the token ids of a text with one word masked, followed by the ids of the whole text; and the position
        of the mask.

        If both together are too long, the whole text is left out. If even the masked text is too long, returns None.
        """
        vocabulary, encode = self.filler.vocabulary, self.reader.encode
        before = encode(text[: match.start()], add_special_tokens=False).ids
        after = encode(text[match.end() :], add_special_tokens=False).ids
        masked = [vocabulary.cls, *before, vocabulary.mask, *after, vocabulary.sep]
        both = [*masked, *encode(text, add_special_tokens=False).ids, vocabulary.sep]
        row = next((row for row in (both, masked) if len(row) <= self.filler.length), None)
        return None if row is None else (row, 1 + len(before))

    def most_probable_words(self, asked: Sequence[tuple[int, int, str, list[int], int]]) -> list[list[str]]:
        """Returns the `count` + 1 most probable words for each mask; one of them may be the masked word itself."""
        order = sorted(range(len(asked)), key=lambda number: len(asked[number][3]))
        found: list[list[str]] = [[] for _ in asked]
        for start in range(0, len(order), ROWS):
            some = order[start : start + ROWS]
            rows = [(asked[number][3], asked[number][4]) for number in some]
            for number, logits_V in zip(some, self.mask_logits(rows), strict=True):
                logits_V = np.where(self.is_word, logits_V[: len(self.is_word)], -np.inf)
                best = np.argpartition(-logits_V, min(self.count + 1, len(logits_V) - 1))[: self.count + 1]
                best = best[np.argsort(-logits_V[best], kind='stable')]
                found[number] = [self.tokens[id] for id in best if np.isfinite(logits_V[id])]
        return found

    def mask_logits(self, rows: Sequence[tuple[list[int], int]]) -> np.ndarray:
        """Returns float32 logits [B, V] at the mask of each row; row lengths are rounded up, to compile fewer
        programs.
        """
        longest = max(len(ids) for ids, _ in rows)
        length = min(-(-longest // STEP) * STEP, self.filler.length)
        tokens_BL = np.full((ROWS, length), self.filler.vocabulary.pad, np.int32)
        lengths_B, places_BP = np.zeros(ROWS, np.int32), np.zeros((ROWS, 1), np.int32)
        for number, (ids, place) in enumerate(rows):
            tokens_BL[number, : len(ids)], lengths_B[number] = ids, len(ids)
            places_BP[number] = place
        logits_BPV = self.filler.masked_logits(self.filler.params, tokens_BL, lengths_B, places_BP)
        return np.asarray(logits_BPV)[: len(rows), 0]


def augmented_texts(
    texts: Sequence[str], words: Sequence[Sequence[ReplaceableWord]], *, copies: int, share: float, seed: int, row: int
) -> Iterator[tuple[str, ...]]:
    """Yields up to `copies` different variants of a row's texts with replaced words; no variant equals the original
    texts.

    Args:
        texts: the row's texts; words are replaced in each separately.
        words: the replaceable words of each text, from `WordReplacer.propose_replacements`.
        copies: number of tries.
        share: probability that a word is replaced; its proposals are equally likely.
        seed: seed of the whole file.
        row: number of the row; the row's random numbers depend only on `seed` and `row`.
    """
    rng = random_stream(seed, RandomStreamId.REPLACED_WORDS, 0, row)
    seen = {tuple(texts)}
    for _ in range(copies):
        made = tuple(replace_words(text, some, share, rng) for text, some in zip(texts, words, strict=True))
        if made not in seen:
            seen.add(made)
            yield made


def replace_words(text: str, words: Sequence[ReplaceableWord], share: float, rng: np.random.Generator) -> str:
    """Returns the text with a random share of its replaceable words replaced; a capital first letter is kept."""
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
