"""Builds the long row of a multi-hop question: paragraphs with a marker token before every title and sentence."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.examples.hotpotqa import MultiHopQuestion, SentenceId
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.tasks.problems.encoded_text import EncodedText, encoded_texts, tokens_in_character_span

# reserved pieces of BERT's vocabularies; no text contains them
TITLE_MARKER, SENTENCE_MARKER = '[unused1]', '[unused2]'
TYPES = ('span', 'yes', 'no')


@dataclasses.dataclass(frozen=True, slots=True)
class MarkedText:
    """A title or a sentence of a paragraph, which has a marker token in the row; `sentence` is None for a title."""

    text: str
    title: str
    sentence: SentenceId | None = None


def marked_texts(example: MultiHopQuestion) -> list[MarkedText]:
    """Returns the titles and sentences of a question's paragraphs, in order."""
    found = []
    for paragraph in example.paragraphs:
        found.append(MarkedText(paragraph.title, paragraph.title))
        for number, sentence in enumerate(paragraph.sentences):
            found.append(MarkedText(sentence, paragraph.title, (paragraph.title, number)))
    return found


def marker_ids(encoder: TextEncoder) -> tuple[int, int]:
    """Returns the token ids of the markers of titles and of sentences.

    If the vocabulary has no unused pieces, both are the separator's id.
    """
    found = [encoder.tokenizer.token_to_id(name) for name in (TITLE_MARKER, SENTENCE_MARKER)]
    title, sentence = (encoder.sep if id is None else id for id in found)
    return title, sentence


def paragraph_arrays(
    texts: Sequence[MarkedText], encoded: Sequence[EncodedText], markers: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Returns the arrays of all paragraphs of a row, such as token ids and character offsets, int32 [l] each.

    - 'tokens': the token ids.
    - 'text': the number of the token's marked text, -1 at markers.
    - 'offset_start', 'offset_end': the token's characters in its text, -1 at markers.
    - 'sentence': the number of the marked text at the marker of a sentence, -1 elsewhere.
    - 'is_marker': 1 at markers, 0 elsewhere.
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


def locate_answer(example: MultiHopQuestion, texts: Sequence[MarkedText]) -> tuple[int, int, int] | None:
    """Returns the most likely position of the answer: the index of the title or sentence, and the first and end
    character in it.

    It is None if no text contains the answer.

    HotpotQA does not say where the answer is. Matches of whole words come before matches inside words. Then the order
    is: supporting sentences, other sentences of their paragraphs, titles of these paragraphs, other sentences, other
    titles. Then the order of the row decides.
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
    """Returns the first and last position of the answer among the paragraph tokens; None if no paragraph has the
    answer."""
    place = locate_answer(example, texts)
    found = tokens_in_character_span(encoded[place[0]].offsets, *place[1:]) if place else None
    if place is None or found is None:
        return None
    before = sum(len(tokens) + 1 for tokens in encoded[: place[0]]) + 1
    return before + found[0], before + found[1]


def answer_type(example: MultiHopQuestion) -> int:
    """Returns the index of the answer's type in TYPES."""
    answer = (example.answers or ('',))[0].strip().lower()
    return TYPES.index(answer) if answer in TYPES[1:] else 0


def encoded_marked_texts(
    encoder: TextEncoder, examples: Sequence[MultiHopQuestion]
) -> Iterator[tuple[list[MarkedText], list[EncodedText]]]:
    """Yields, for each example, its titles and sentences and their tokens."""
    for example in examples:
        texts = marked_texts(example)
        yield texts, encoded_texts(encoder, [marked.text for marked in texts])
