"""Computes how much each word and each sentence weighs in the pooled vector from which a classifier decides."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Encoding

from efficient_attention.data.examples.batches import pad_and_stack_rows
from efficient_attention.errors import InputError
from efficient_attention.inference.pipeline import TextPipeline, pipeline
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.tasks.problems.one_label import OneLabelProblem
from efficient_attention.tasks.problems.problem import Feature
from efficient_attention.tasks.problems.sentence_rows import split_into_sentences

BETWEEN, SPECIAL, UNREAD = 'between', 'special', 'unread'


class WeightedWord(NamedTuple):
    """A word, or the text between two words, with the summed pooling weight of its tokens in the vector of the
    sentence.

    `kind`: '' = a word, `BETWEEN` = the characters between two words, `SPECIAL` = the pieces that the tokenizer adds,
    `UNREAD` = the truncated end of a sentence.
    """

    text: str
    weight: float = 0.0
    kind: str = ''


class WeightedSentence(NamedTuple):
    """A sentence as a sequence of weighted words, and the sentence's pooling weight in the vector of the text.

    The weight is 1 if the sentence is the whole text.
    """

    weight: float
    words: tuple[WeightedWord, ...]


class PoolingWeightsOfText(NamedTuple):
    """A classifier's answer for a text, the pooling weights of its sentences, and the number of sentences that were not
    read.
    """

    answer: dict[str, Any]
    sentences: tuple[WeightedSentence, ...]
    left_out: int


class PoolingWeightsPipeline:
    """A pipeline that returns a classifier's answer together with the pooling weights of words and sentences."""

    def __init__(self, path: Path, checkpoint: str = '') -> None:
        """Loads a classifier from a workdir or Hugging Face folder; raises InputError if it cannot be loaded or reads
        pairs of texts.
        """
        pretrained = open_pretrained(path, checkpoint)
        self.answers: TextPipeline = pipeline('text-classification', path, checkpoint=checkpoint, overlong='truncate')
        config, head = pretrained.model, pretrained.head
        model = pretrained_module(lambda rngs: FineTuningModel(config, head, rngs=rngs), pretrained)
        graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)
        self.weights = jax.jit(lambda params, batch: nnx.merge(graph, params).pooling_weights(batch))
        problem = self.answers.make_task(self.answers.examples)
        assert isinstance(problem, OneLabelProblem)
        if problem.text_count > 1:
            raise InputError(f'{path} reads pairs of texts; the weights that are shown are those of one')
        self.problem, self.encoder = problem, self.answers.encoder

    def __call__(self, text: str) -> PoolingWeightsOfText:
        """Returns the classifier's answer and the pooling weights for one text; raises InputError if the text is
        empty.
        """
        [feature] = self.problem.encode([self.problem.example_from_python(text)])
        weights = self.weights(self.params, self.single_row_batch(feature))
        tokens = np.asarray(weights['words'])[0]
        rows = tokens if self.problem.config.sentences else tokens[None]
        of_sentences = np.asarray(weights.get('sentences', np.ones((1, 1))))[0]
        parts = self.split_into_sentences(text)
        shown = tuple(
            WeightedSentence(float(weight), tuple(self.word_weights(part, encoding, row)))
            for (part, encoding), row, weight in zip(parts, rows, of_sentences, strict=False)
        )
        return PoolingWeightsOfText(self.answers.answers([text])[0][0], shown, len(parts) - len(shown))

    def single_row_batch(self, feature: Feature) -> dict[str, Any]:
        """Returns a batch with this example as its only row, without padding."""
        shape = (1, *feature['tokens'].shape)
        arrays = pad_and_stack_rows([feature], np.zeros(1, np.int32), shape, self.encoder.pad, feature)
        return {name: jnp.asarray(arrays[name]) for name in ('tokens', 'token_types', 'segments')}

    def split_into_sentences(self, text: str) -> list[tuple[str, Encoding]]:
        """Returns the sentences of a text with their tokens, or the whole text if the model has no sentence level."""
        parts = split_into_sentences(text) if self.problem.config.sentences else [text]
        found = list(zip(parts, self.encoder.encode(parts), strict=True))
        return [one for one in found if one[1].ids] or found[:1]

    def word_weights(self, text: str, encoding: Encoding, weights: np.ndarray) -> Iterator[WeightedWord]:
        """Yields the words of a sentence in order, each with its weight.

        `weights` are the pooling weights of the sentence's row, including special tokens.
        """
        start = self.problem.templates[1].first_text_start
        pieces = weights[
            start : start + min(len(encoding.ids), self.answers.length - self.problem.templates[1].special_token_count)
        ]
        place, end = 0, 0
        for first, last in word_spans(encoding, len(pieces)):
            begin, stop = encoding.offsets[first][0], encoding.offsets[last - 1][1]
            if begin > end:
                yield WeightedWord(text[end:begin], kind=BETWEEN)
            yield WeightedWord(text[begin:stop], float(pieces[first:last].sum()))
            place, end = last, stop
        if place < len(encoding.ids):
            yield WeightedWord(text[end:], kind=UNREAD)
        yield WeightedWord('special', float(weights.sum() - pieces.sum()), SPECIAL)


def word_spans(encoding: Encoding, count: int) -> Iterator[tuple[int, int]]:
    """Yields the token span (first, end) of each word among the first `count` tokens; the end is exclusive."""
    first = 0
    for piece in range(1, count + 1):
        if piece == count or encoding.word_ids[piece] != encoding.word_ids[first]:
            yield first, piece
            first = piece
