"""Token classification: predicts a tag for each word, such as a type of named entity or a part of speech."""

import collections
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.conll import TaggedSentence, read_sentences
from efficient_attention.data.examples.special_tokens_template import special_tokens_template_of
from efficient_attention.data.examples.text_encoder import TextEncoder, encode_in_batches
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.conll import detect_tag_scheme, entities, entity_scores
from efficient_attention.tasks.metrics.glue import accuracy
from efficient_attention.tasks.problems.overlong_texts import OverlongCounts, TokenLengthPolicy
from efficient_attention.tasks.problems.prediction_files import write_lines
from efficient_attention.tasks.problems.problem import Feature, Outputs, Problem
from efficient_attention.tasks.problems.token_windows import WordTokens, word_tokens, word_windows

# matches a word with inner punctuation ('e-mail', "don't", '@user', '#tag', '3.5'), or a single punctuation mark
WORD = re.compile(r"[@#]?\w+(?:[-.,'’_&/:]\w+)*|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class TagPrediction:
    """The predicted tag of each word of a sentence, with its probability.

    `spans` are the character ranges of the words in `text`.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]


class TokenClassification(Problem[TaggedSentence, TagPrediction | None]):
    """A fine-tuning problem with a tag for each word, predicted at the word's first token.

    If a sentence was left out as too long, its prediction is None. Besides the arrays in tasks/problems/problem.py, a
    feature has 'words' int32 [l]: the word predicted at the position, -1 = none.
    """

    head = 'token'

    def __init__(self, config: ExamplesConfig, encoder: TextEncoder, length: int) -> None:
        """Finds the tags in the config or the training files, and prepares how sentences are encoded as rows."""
        super().__init__(config, encoder, length)
        if config.format not in ('conll', 'table'):
            raise InputError(f"examples.format is {config.format!r}; token classification reads 'conll' or 'table'")
        if config.overlong == 'truncate':
            raise InputError("examples.overlong is 'truncate', which loses words; known: windows, error, skip")
        self.template = special_tokens_template_of(encoder, is_pair=False)
        self.rule = TokenLengthPolicy(config.overlong, config.stride, length)
        self.room = self.rule.tokens_left_for_texts(self.template.special_token_count, 1)
        self.dev_splits = ('dev',) if config.dev else ()
        self.labels = config.labels or self._found_labels()
        self._numbers = {label: number for number, label in enumerate(self.labels)}
        self.fallback = 'O' if 'O' in self._numbers else self.labels[0]  # tag of a word that has no token
        self.scheme = detect_tag_scheme(self.labels)
        names = ('f1', 'precision', 'recall', 'accuracy') if self.scheme else ('accuracy',)
        self.metric_names, self.best_metric = frozenset(names), names[0]

    def _found_labels(self) -> tuple[str, ...]:
        found = {tag for sentence in read_sentences(self.config, 'train') for tag in sentence.tags or ()}
        if not found:
            raise InputError('examples.labels is empty, and examples.train gives no tags to take labels from')
        return tuple(sorted(found))

    def read_examples(self, split: str) -> list[TaggedSentence]:
        """Returns the sentences of a split, in file order; raises InputError if a tag is unknown."""
        sentences = list(read_sentences(self.config, split))
        for sentence in sentences:
            for line, tag in zip(sentence.lines, sentence.tags or (), strict=sentence.tags is not None):
                if tag not in self._numbers:
                    known = ', '.join(self.labels)
                    where = f'{sentence.file}: line {line}'
                    raise InputError(f'{where}: tag {tag!r} is not known; known (see examples.labels): {known}')
        return sentences

    def encode(self, examples: Sequence[TaggedSentence], *, is_training: bool = False) -> list[Feature]:
        """Returns the sentences as rows of tokens, one or more rows per sentence."""
        del is_training  # `is_training` is unused, because training drops no row.
        counts = OverlongCounts(self.rule)
        lost: collections.Counter[str] = collections.Counter()
        features: list[Feature] = []
        for index, (sentence, tokens) in enumerate(zip(examples, self._word_tokens(examples), strict=True)):
            rows = self._window_rows(sentence, tokens)
            counts.count_row(sentence.file, is_overlong=len(tokens.ids) > self.room, made=len(rows))
            lost[sentence.file] += tokens.lost_word_count
            features += [self._make_feature(sentence, tokens, row, index) for row in rows]
        self.note_overlong_rows(counts)
        for file, count in lost.items():
            if count:
                self._notes[f'{file} lost'] = (
                    f'{file or "input"}: {count} words have no token and get {self.fallback!r}'
                )
        return features

    def _word_tokens(self, examples: Sequence[TaggedSentence]) -> list[WordTokens]:
        texts, spans = zip(*map(locate_words, examples), strict=True) if examples else ((), ())
        found = zip(encode_in_batches(self.encoder, texts), spans, strict=True)
        return [word_tokens(np.array(one.ids, np.int32), one.offsets, place) for one, place in found]

    def _window_rows(self, sentence: TaggedSentence, tokens: WordTokens) -> list[tuple[int, np.ndarray]]:
        if len(tokens.ids) > self.room and self.rule.policy != 'windows':
            return (
                [(0, tokens.words)]
                if self.rule.fit_to_rows(
                    [tokens.ids], self.template.special_token_count, sentence.file_and_line, ['words']
                )
                else []
            )
        return word_windows(tokens, self.room, self.config.stride)

    def _make_feature(
        self, sentence: TaggedSentence, tokens: WordTokens, row: tuple[int, np.ndarray], index: int
    ) -> Feature:
        first, words_of_row = row
        feature = self.template.row(tokens.ids[first : first + len(words_of_row)])
        words = np.full(len(feature['tokens']), -1, np.int32)
        words[self.template.first_text_start : self.template.first_text_start + len(words_of_row)] = words_of_row
        feature |= {'example': np.array(index, np.int32), 'words': words}
        if sentence.tags is not None:
            numbers = np.array([self._numbers[tag] for tag in sentence.tags], np.int32)
            feature['labels'] = np.where(words >= 0, numbers[words], np.int32(-1))
        return self.mark_global_token(feature)

    def is_labelled(self, example: TaggedSentence) -> bool:
        """Returns whether the sentence has known tags."""
        return example.tags is not None

    def predict_from_outputs(
        self, examples: Sequence[TaggedSentence], features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[TagPrediction | None]:
        """Returns the most likely tag of each word of each sentence; None for a sentence that was left out
        because it is too long."""
        tags = [[self.fallback] * len(sentence.words) for sentence in examples]
        scores = [[0.0] * len(sentence.words) for sentence in examples]
        seen = set()
        for feature, output in zip(features, outputs, strict=True):
            index, places = int(feature['example']), np.flatnonzero(feature['words'] >= 0)
            seen.add(index)
            probabilities = scipy.special.softmax(output['logits'][places].astype(np.float64), axis=-1)
            for word, row in zip(feature['words'][places], probabilities, strict=True):
                tags[index][word] = self.labels[int(np.argmax(row))]
                scores[index][word] = float(np.max(row))
        return [
            TagPrediction(*locate_words(sentence), tuple(tags[index]), tuple(scores[index])) if index in seen else None
            for index, sentence in enumerate(examples)
        ]

    def score(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[TagPrediction | None], split: str
    ) -> dict[str, float]:
        """Returns accuracy and, if tags mark entities, entity scores, computed without the sentences that were left
        out."""
        del split  # `split` is unused, because token classification has only one dev split.
        expected: list[tuple[str, ...]] = []
        predicted: list[tuple[str, ...]] = []
        for sentence, guess in zip(examples, predictions, strict=True):
            if guess is not None:
                if sentence.tags is None:
                    raise InputError(f'{sentence.file_and_line}: no tags to compare the prediction with')
                expected.append(sentence.tags)
                predicted.append(guess.tags)
        words = [np.array([tag for tags in side for tag in tags], object) for side in (expected, predicted)]
        scores = {'accuracy': accuracy(words[0], words[1])}
        return scores | entity_scores(expected, predicted, self.scheme) if self.scheme else scores

    def write_predictions(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[TagPrediction | None], split: str, folder: Path
    ) -> list[Path]:
        """Writes each word with its known and its predicted tag, one word per line.

        The file is 'predictions.conll' or '<split>_predictions.conll'.

        'predictions.conll' is for the 'test' split.
        """
        lines: list[str] = []
        for sentence, guess in zip(examples, predictions, strict=True):
            if guess is not None:
                columns = [sentence.words, *([sentence.tags] if sentence.tags else []), guess.tags]
                lines += ['\t'.join(line) for line in zip(*columns, strict=True)] + ['']
        name = 'predictions.conll' if split == 'test' else f'{split}_predictions.conll'
        return [write_lines(lines, folder / name)]

    def example_from_python(self, value: Any) -> TaggedSentence:
        """Returns a sentence from a text, which is split into words and punctuation, or from a list of words.

        Raises:
            InputError: the value is neither a text nor a list of words, or has no word.
        """
        if isinstance(value, str):
            found = [(match.group(), match.span()) for match in WORD.finditer(value)]
            words, spans = [word for word, _ in found], [span for _, span in found]
            text = value
        elif isinstance(value, list | tuple) and all(isinstance(word, str) and word.strip() for word in value):
            words, spans, text = list(value), [], ''
        else:
            raise InputError('an input is a text or a list of words, none of it empty')
        if not words:
            raise InputError('an input is a text or a list of words, none of it empty')
        return TaggedSentence('', (1,) * len(words), tuple(words), None, text, tuple(spans))

    def prediction_to_python(self, prediction: TagPrediction | None) -> list[dict[str, Any]] | None:
        """Returns {'word', 'label', 'score', 'start', 'end'} per entity, or per word if tags mark no entities.

        'start' and 'end' count characters of the text. The score of an entity is the mean of its words' scores.
        """
        if prediction is None:
            return None
        if self.scheme:
            found_entities = entities(prediction.tags, self.scheme)
        else:
            found_entities = [(tag, place, place + 1) for place, tag in enumerate(prediction.tags)]
        found = []
        for label, first, last in found_entities:
            start, end = prediction.spans[first][0], prediction.spans[last - 1][1]
            score = float(np.mean(prediction.probabilities[first:last]))
            word = prediction.text[start:end]
            found.append({'word': word, 'label': label, 'score': score, 'start': start, 'end': end})
        return found


def locate_words(sentence: TaggedSentence) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Returns the text of a sentence, and the character range of each of its words."""
    if sentence.text:
        return sentence.text, sentence.spans
    spans = []
    start = 0
    for word in sentence.words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return ' '.join(sentence.words), tuple(spans)
