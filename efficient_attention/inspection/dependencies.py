"""Which head points from a word to its syntactic head? Measures each head on sentences with dependencies.

Source: Clark et al. 2019, arXiv 1906.04341, section 4.2. The attention to a word is the sum over its tokens, and the
attention from a word is the mean over its tokens. Each head predicts the most-attended other word.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.conll import read_sentences
from efficient_attention.errors import InputError
from efficient_attention.inference.attention_pipeline import AttentionPipeline, EncoderRows

ROOT = -1  # head of the word that depends on no other word
PUNCTUATION = 'punct'  # the relation that `ALL` leaves out
ALL = 'all'  # all relations except `PUNCTUATION` together
DIRECTIONS = ('dependent to head', 'head to dependent')
LEAST_CASES = 100  # fewer cases of a relation in the test sentences give no row


class Sentence(NamedTuple):
    """The words of a sentence with their dependencies.

    Attributes:
        words: at least one.
        heads: the place of each word's head in the sentence, from 0; `ROOT` for the root.
        relations: the dependency label of each word, such as 'nsubj'.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_dependencies(path: Path) -> list[Sentence]:
    """Returns the sentences of a CoNLL-U file; lines of multiword tokens (1-2) and empty nodes (1.1) are skipped.

    Raises:
        InputError: the file cannot be read, is no CoNLL-U, has no sentences, or a word has no valid head.
    """
    if '.conllu' not in path.suffixes:
        raise InputError(f'{path} is no CoNLL-U file: its name must end in .conllu')
    heads, relations = (_columns(path, *names) for names in (('form', 'head'), ('id', 'deprel')))
    found = []
    for (lines, words, tags), (_, numbers, labels) in zip(heads, relations, strict=True):
        if numbers != tuple(str(number) for number in range(1, len(words) + 1)):
            raise InputError(f'{path}: line {lines[0]}: the words of the sentence are not numbered 1, 2, ...')
        found.append(Sentence(words, tuple(_heads(path, lines, tags)), labels))
    if not found:
        raise InputError(f'{path}: no sentences')
    return found


def _columns(path: Path, text: str, label: str) -> list[tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]]:
    """Returns the line numbers and two columns of each sentence."""
    config = ExamplesConfig(
        problem='token_classification', format='conll', text=text, label=label, dev=str(path).replace(',', '?')
    )
    return [(one.lines, one.words, one.tags or ()) for one in read_sentences(config, 'dev')]


def _heads(path: Path, lines: Sequence[int], tags: Sequence[str]) -> Iterator[int]:
    """Yields the place of each word's head; raises InputError for a head that is missing or outside the sentence."""
    for place, (line, tag) in enumerate(zip(lines, tags, strict=True)):
        if tag == '_':
            raise InputError(f'{path}: line {line}: the word has no head (column 7 is _)')
        if not tag.isascii() or not tag.isdecimal() or not 0 <= int(tag) <= len(tags) or int(tag) == place + 1:
            raise InputError(f'{path}: line {line}: the head is {tag!r}; the sentence has words 1 to {len(tags)}')
        yield int(tag) - 1


def word_of_tokens(pipeline: AttentionPipeline, words: Sequence[str]) -> tuple[list[Any], np.ndarray] | None:
    """Returns the row of a sentence, and the word of each token, int [L]; -1 for special tokens.

    The result is None if the sentence does not fit one row, or a decoder's tokens do not join to the text.
    """
    text, rows = ' '.join(words), pipeline.rows
    windows = rows.windows(text)
    if len(windows) != 1:
        return None
    names, numbers = windows[0].names, windows[0].text_numbers
    if isinstance(rows, EncoderRows):
        ends = iter(end for _, end in rows.encoder.encode([text])[0].offsets)
    else:
        if ''.join(names) != text:
            return None
        ends = iter(np.cumsum([len(name) for name in names]).tolist())
    # The character before the end of a token decides, because tokens may begin with a space.
    word_of_character = np.repeat(np.arange(len(words)), [len(word) + 1 for word in words])
    found = [-1 if number is None else int(word_of_character[max(next(ends) - 1, 0)]) for number in numbers]
    return windows, np.array(found)


def word_weights(weights_HLL: np.ndarray, word_of_token_L: np.ndarray, words: int) -> np.ndarray:
    """Returns the weights between words, [H, words, words]: to a word the sum, from a word the mean over its tokens."""
    is_token_WL = word_of_token_L == np.arange(words)[:, None]
    to_HLW = weights_HLL @ is_token_WL.T.astype(weights_HLL.dtype)
    share_WL = is_token_WL / np.maximum(is_token_WL.sum(1, keepdims=True), 1)
    return share_WL.astype(weights_HLL.dtype) @ to_HLW


class ReadSentence(NamedTuple):
    """A sentence with the weights between its words.

    Attributes:
        sentence: the sentence.
        weights_NWW: float32, for the heads of all layers.
    """

    sentence: Sentence
    weights_NWW: np.ndarray


def read_weights(
    pipeline: AttentionPipeline, sentences: Iterable[Sentence]
) -> tuple[list[ReadSentence], list[tuple[int, int]]]:
    """Returns the sentences that fit one row, with the weights between their words, and the (layer, head) of each head.

    Sentences of one word have no dependencies and are left out. The weights of 2,000 sentences of 13 words and 72 heads
    take 160 MB.

    Raises:
        InputError: no sentence can be read.
    """
    found: list[ReadSentence] = []
    heads: list[tuple[int, int]] = []
    for sentence in sentences:
        row = word_of_tokens(pipeline, sentence.words) if len(sentence.words) > 1 else None
        if row is None:
            continue
        [window] = pipeline.read(row[0])
        layers = [(layer['layer'], layer['weights']) for layer in window['layers']]
        joined = [word_weights(weights[..., -len(row[1]) :], row[1], len(sentence.words)) for _, weights in layers]
        heads = heads or [(number, head) for number, weights in layers for head in range(len(weights))]
        found.append(ReadSentence(sentence, np.concatenate(joined)))
    if not found:
        raise InputError('no sentence with dependencies can be read: each is too long, or of one word')
    return found, heads


def most_attended(weights_NWW: np.ndarray) -> np.ndarray:
    """Returns the most-attended other word of each word, [heads, words]."""
    return np.where(np.eye(weights_NWW.shape[-1], dtype=bool), -np.inf, weights_NWW).argmax(-1)


class RelationCounts:
    """What heads and fixed offsets predict right, by relation.

    Attributes:
        cases: number of dependencies.
        right: for each relation int [2, heads], the right predictions of each head in each of `DIRECTIONS`.
        offsets: for each relation the number of dependencies by offset, the place of the head minus that of the word.
    """

    def __init__(self, sentences: Iterable[ReadSentence]) -> None:
        self.cases: Counter[str] = Counter()
        self.right: dict[str, np.ndarray] = {}
        self.offsets: dict[str, Counter[int]] = {}
        for one in sentences:
            self._add(one.sentence, most_attended(one.weights_NWW))

    def _add(self, sentence: Sentence, guesses_NW: np.ndarray) -> None:
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head == ROOT:
                continue
            right_2N = np.stack([guesses_NW[:, word] == head, guesses_NW[:, head] == word]).astype(np.int64)
            for name in (relation, ALL) if relation != PUNCTUATION else (relation,):
                self.cases[name] += 1
                self.right[name] = self.right[name] + right_2N if name in self.right else right_2N
                self.offsets.setdefault(name, Counter())[head - word] += 1

    def accuracy(self, relation: str, direction: int, head: int) -> float:
        """Returns the accuracy of a head for a relation, from 0 to 1."""
        return float(self.right[relation][direction, head]) / self.cases[relation]

    def offset_accuracy(self, relation: str, offset: int) -> float:
        """Returns the accuracy of a fixed offset for a relation, from 0 to 1; it is equal in both directions."""
        return self.offsets[relation][offset] / self.cases[relation]


def best_heads(
    dev: RelationCounts, test: RelationCounts, heads: Sequence[tuple[int, int]], least: int = LEAST_CASES
) -> list[dict[str, Any]]:
    """Returns a dict per relation with at least `least` test cases: the best head and offset of the dev sentences.

    'accuracy' and 'offset_accuracy' are those of the test sentences, from 0 to 1. `ALL` comes first, then the relations
    by falling number of cases.
    """
    found = []
    for relation, cases in sorted(test.cases.items(), key=lambda one: (one[0] != ALL, -one[1], one[0])):
        if cases < least or relation not in dev.cases:
            continue
        direction, head = divmod(int(dev.right[relation].argmax()), len(heads))
        # Of offsets with equally many cases, the one with the smallest distance is taken.
        offset = min(dev.offsets[relation], key=lambda one: (-dev.offsets[relation][one], abs(one), one))
        found.append(
            {
                'relation': relation,
                'cases': cases,
                'layer': heads[head][0],
                'head': heads[head][1],
                'direction': DIRECTIONS[direction],
                'dev_accuracy': dev.accuracy(relation, direction, head),
                'accuracy': test.accuracy(relation, direction, head),
                'offset': offset,
                'offset_accuracy': test.offset_accuracy(relation, offset),
            }
        )
    return found
