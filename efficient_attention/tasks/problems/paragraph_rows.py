"""Makes one long row of a question and its paragraphs, with a marker before every title and sentence."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.examples.hotpotqa import MultiHopQuestion, SentenceId
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.tasks.problems.encoded_text import EncodedText, encoded_texts, tokens_over

TITLE_MARKER, SENTENCE_MARKER = '[unused1]', '[unused2]'  # of BERT's vocabularies, which no text gives
TYPES = ('span', 'yes', 'no')


@dataclasses.dataclass(frozen=True, slots=True)
class MarkedText:
    """A title or a sentence of a paragraph, with a marker before it in the row; `sentence` is None for a title."""

    text: str
    title: str
    sentence: SentenceId | None = None


def marked_texts(example: MultiHopQuestion) -> list[MarkedText]:
    """The titles and sentences in their order."""
    found = []
    for paragraph in example.paragraphs:
        found.append(MarkedText(paragraph.title, paragraph.title))
        for number, sentence in enumerate(paragraph.sentences):
            found.append(MarkedText(sentence, paragraph.title, (paragraph.title, number)))
    return found


def marker_ids(encoder: TextEncoder) -> tuple[int, int]:
    """The ids that mark a title and a sentence; the separator for both in a vocabulary without unused pieces."""
    found = [encoder.tokenizer.token_to_id(name) for name in (TITLE_MARKER, SENTENCE_MARKER)]
    title, sentence = (encoder.sep if id is None else id for id in found)
    return title, sentence


def body_of(
    texts: Sequence[MarkedText], encoded: Sequence[EncodedText], markers: tuple[int, int]
) -> dict[str, np.ndarray]:
    """What a row holds of the paragraphs, int32 [l] each.

    'tokens'; 'text', the number of the marked text that a token is of, and 'offset_start' and 'offset_end', its
    characters there, all -1 at markers; 'sentence', the number of the text at a sentence's marker, -1 elsewhere;
    'is_marker'.
    """
    names = ('tokens', 'text', 'offset_start', 'offset_end', 'sentence', 'is_marker')
    arrays: dict[str, list[np.ndarray]] = {name: [np.zeros(0, np.int32)] for name in names}
    for number, (text, tokens) in enumerate(zip(texts, encoded, strict=True)):
        is_sentence = text.sentence is not None
        none = np.full(len(tokens), -1)
        columns = {
            'tokens': (markers[is_sentence], tokens.ids),
            'text': (-1, np.full(len(tokens), number)),
            'offset_start': (-1, tokens.offsets[:, 0]),
            'offset_end': (-1, tokens.offsets[:, 1]),
            'sentence': (number if is_sentence else -1, none),
            'is_marker': (1, none + 1),
        }
        for name, (marker, values) in columns.items():
            arrays[name].append(np.concatenate([[marker], values]).astype(np.int32))
    return {name: np.concatenate(blocks) for name, blocks in arrays.items()}


def answer_place(example: MultiHopQuestion, texts: Sequence[MarkedText]) -> tuple[int, int, int] | None:
    """(text, first, last character) of where the answer most likely stands; None where it does nowhere.

    HotpotQA does not say where. Whole words come before parts of them; then the supporting sentences, other sentences
    of their paragraphs, those paragraphs' titles, other sentences, other titles; then the order of the row.
    """
    titles = {title for title, _ in example.supporting}

    def distance(text: MarkedText) -> tuple[bool, bool, bool]:
        return text.sentence not in example.supporting, text.title not in titles, text.sentence is None

    order = sorted(range(len(texts)), key=lambda number: distance(texts[number]))
    bounds = (r'(?<!\w){}(?!\w)', '{}')
    for bound, answer in itertools.product(bounds, example.answers or ()):
        pattern = re.compile(bound.format(re.escape(answer)))
        for number in order:
            if match := pattern.search(texts[number].text):
                return number, match.start(), match.end()
    return None


def answer_positions(
    example: MultiHopQuestion, texts: Sequence[MarkedText], encoded: Sequence[EncodedText]
) -> tuple[int, int] | None:
    """The first and the last position of the answer in the body of the row; None where it is not there."""
    place = answer_place(example, texts)
    found = tokens_over(encoded[place[0]].offsets, *place[1:]) if place else None
    if place is None or found is None:
        return None
    before = sum(len(tokens) + 1 for tokens in encoded[: place[0]]) + 1
    return before + found[0], before + found[1]


def answer_type(example: MultiHopQuestion) -> int:
    """The number of the answer's type in TYPES."""
    answer = (example.answers or ('',))[0].strip().lower()
    return TYPES.index(answer) if answer in TYPES[1:] else 0


def encoded_marked_texts(
    encoder: TextEncoder, examples: Sequence[MultiHopQuestion]
) -> Iterator[tuple[list[MarkedText], list[EncodedText]]]:
    """The marked texts of each example and their tokens."""
    for example in examples:
        texts = marked_texts(example)
        yield texts, encoded_texts(encoder, [marked.text for marked in texts])
