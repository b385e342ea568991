"""A question and its paragraphs as one long row with a marker at every title and sentence."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.examples.hotpotqa import Fact, MultiHopQuestion
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.tasks.problems.encoded_text import EncodedText, encoded_texts, tokens_over

TITLE_MARKER, SENTENCE_MARKER = '[unused1]', '[unused2]'  # of BERT's vocabularies, which no text gives
TYPES = ('span', 'yes', 'no')


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A title or a sentence: a part of the row that an answer may lie in; `fact` is None for a title."""

    text: str
    title: str
    fact: Fact | None = None


def units_of(example: MultiHopQuestion) -> list[Unit]:
    """The titles and sentences in their order."""
    found = []
    for paragraph in example.paragraphs:
        found.append(Unit(paragraph.title, paragraph.title))
        for number, sentence in enumerate(paragraph.sentences):
            found.append(Unit(sentence, paragraph.title, (paragraph.title, number)))
    return found


def marker_ids(encoder: TextEncoder) -> tuple[int, int]:
    """The ids that mark a title and a sentence; the separator for both in a vocabulary without unused pieces."""
    found = [encoder.tokenizer.token_to_id(name) for name in (TITLE_MARKER, SENTENCE_MARKER)]
    title, sentence = (encoder.sep if id is None else id for id in found)
    return title, sentence


def body_of(units: Sequence[Unit], pieces: Sequence[EncodedText], markers: tuple[int, int]) -> dict[str, np.ndarray]:
    """The paragraphs' part of a row, int32 [l] each.

    'tokens'; 'unit', the number of the piece's unit, and 'offset_start' and 'offset_end', its characters in the unit's
    text, all -1 at markers; 'sentence', the number of the unit at a sentence's marker, -1 elsewhere; 'is_marker'.
    """
    names = ('tokens', 'unit', 'offset_start', 'offset_end', 'sentence', 'is_marker')
    parts: dict[str, list[np.ndarray]] = {name: [np.zeros(0, np.int32)] for name in names}
    for number, (unit, own) in enumerate(zip(units, pieces, strict=True)):
        is_sentence = unit.fact is not None
        none = np.full(len(own), -1)
        columns = {
            'tokens': (markers[is_sentence], own.ids),
            'unit': (-1, np.full(len(own), number)),
            'offset_start': (-1, own.offsets[:, 0]),
            'offset_end': (-1, own.offsets[:, 1]),
            'sentence': (number if is_sentence else -1, none),
            'is_marker': (1, none + 1),
        }
        for name, (marker, values) in columns.items():
            parts[name].append(np.concatenate([[marker], values]).astype(np.int32))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def answer_place(example: MultiHopQuestion, units: Sequence[Unit]) -> tuple[int, int, int] | None:
    """(unit, first, last character) of where the answer most likely stands; None where it does nowhere.

    HotpotQA does not say where. Whole words come before parts of them; then the supporting sentences, other sentences
    of their paragraphs, those paragraphs' titles, other sentences, other titles; then the order of the row.
    """
    titles = {title for title, _ in example.facts}

    def distance(unit: Unit) -> tuple[bool, bool, bool]:
        return unit.fact not in example.facts, unit.title not in titles, unit.fact is None

    order = sorted(range(len(units)), key=lambda number: distance(units[number]))
    bounds = (r'(?<!\w){}(?!\w)', '{}')
    for bound, answer in itertools.product(bounds, example.answers or ()):
        pattern = re.compile(bound.format(re.escape(answer)))
        for number in order:
            if match := pattern.search(units[number].text):
                return number, match.start(), match.end()
    return None


def answer_positions(
    example: MultiHopQuestion, units: Sequence[Unit], pieces: Sequence[EncodedText]
) -> tuple[int, int] | None:
    """The first and the last position of the answer in the body of the row; None where it is not there."""
    place = answer_place(example, units)
    found = tokens_over(pieces[place[0]].offsets, *place[1:]) if place else None
    if place is None or found is None:
        return None
    before = sum(len(own) + 1 for own in pieces[: place[0]]) + 1
    return before + found[0], before + found[1]


def answer_type(example: MultiHopQuestion) -> int:
    """The number of the answer's type in TYPES."""
    answer = (example.answers or ('',))[0].strip().lower()
    return TYPES.index(answer) if answer in TYPES[1:] else 0


def encoded_units(
    encoder: TextEncoder, examples: Sequence[MultiHopQuestion]
) -> Iterator[tuple[list[Unit], list[EncodedText]]]:
    """The units of each example and their pieces."""
    for example in examples:
        units = units_of(example)
        yield units, encoded_texts(encoder, [unit.text for unit in units])
