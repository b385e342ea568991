"""How much each word of a text, and each of its sentences, weighs in the vector that a classifier decides by."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Encoding

from efficient_attention.data.examples.batches import arrays_of_rows
from efficient_attention.errors import InputError
from efficient_attention.inference.pipeline import TextPipeline, pipeline
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.tasks.problems.one_label import OneLabelProblem
from efficient_attention.tasks.problems.problem import Feature
from efficient_attention.tasks.problems.sentence_rows import sentences_of

BETWEEN, SPECIAL, UNREAD = 'between', 'special', 'unread'


class Word(NamedTuple):
    """Characters of a text and the sum of their pieces' weights in the sentence's vector.

    `kind`: '' = a word, `BETWEEN` = what stands between two, `SPECIAL` = the pieces that the tokenizer adds, `UNREAD` =
    the end of a sentence that is cut.
    """

    text: str
    weight: float = 0.0
    kind: str = ''


class Sentence(NamedTuple):
    """Words with what stands between them, and the sentence's weight in the text's vector (1 where it is all of it)."""

    weight: float
    words: tuple[Word, ...]


class PooledText(NamedTuple):
    """A text as a classifier weighs it, with its answer; `left_out` counts the sentences that it does not read."""

    answer: dict[str, Any]
    sentences: tuple[Sentence, ...]
    left_out: int


class TextWeigher:
    """A classifier that gives the weights of its pooling with its answer."""

    def __init__(self, path: Path, checkpoint: str = '') -> None:
        """`path`: a workdir or a Hugging Face folder; raises InputError as `pipeline`, or where rows are of pairs."""
        pretrained = open_pretrained(path, checkpoint)
        self.answers: TextPipeline = pipeline('text-classification', path, checkpoint=checkpoint, overlong='truncate')
        config, head = pretrained.model, pretrained.head
        model = pretrained_module(lambda rngs: FineTuningModel(config, head, rngs=rngs), pretrained)
        graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)
        self.weights = jax.jit(lambda params, batch: nnx.merge(graph, params).pooling_weights(batch))
        problem = self.answers.task(self.answers.examples)
        assert isinstance(problem, OneLabelProblem)
        if problem.text_count > 1:
            raise InputError(f'{path} reads pairs of texts; the weights that are shown are those of one')
        self.problem, self.encoder = problem, self.answers.encoder

    def __call__(self, text: str) -> PooledText:
        """The weights of one text; raises InputError where it is empty."""
        [feature] = self.problem.encode([self.problem.example(text)])
        weights = self.weights(self.params, self.batch(feature))
        tokens = np.asarray(weights['words'])[0]
        rows = tokens if self.problem.config.sentences else tokens[None]
        of_sentences = np.asarray(weights.get('sentences', np.ones((1, 1))))[0]
        parts = self.parts(text)
        shown = tuple(
            Sentence(float(weight), tuple(self.words(part, encoding, row)))
            for (part, encoding), row, weight in zip(parts, rows, of_sentences, strict=False)
        )
        return PooledText(self.answers.answers([text])[0][0], shown, len(parts) - len(shown))

    def batch(self, feature: Feature) -> dict[str, Any]:
        """The row alone, without padding."""
        shape = (1, *feature['tokens'].shape)
        arrays = arrays_of_rows([feature], np.zeros(1, np.int32), shape, self.encoder.pad, feature)
        return {name: jnp.asarray(arrays[name]) for name in ('tokens', 'token_types', 'segments')}

    def parts(self, text: str) -> list[tuple[str, Encoding]]:
        """The sentences that are rows, or the whole text, with their pieces."""
        parts = sentences_of(text) if self.problem.config.sentences else [text]
        found = list(zip(parts, self.encoder.encode(parts), strict=True))
        return [one for one in found if one[1].ids] or found[:1]

    def words(self, text: str, encoding: Encoding, weights: np.ndarray) -> Iterator[Word]:
        """The words of a part that was read, in order; weights are those of its row, special pieces around it too."""
        start = self.problem.templates[1].start
        pieces = weights[start : start + min(len(encoding.ids), self.answers.length - self.problem.templates[1].added)]
        place, end = 0, 0
        for first, last in word_spans(encoding, len(pieces)):
            begin, stop = encoding.offsets[first][0], encoding.offsets[last - 1][1]
            if begin > end:
                yield Word(text[end:begin], kind=BETWEEN)
            yield Word(text[begin:stop], float(pieces[first:last].sum()))
            place, end = last, stop
        if place < len(encoding.ids):
            yield Word(text[end:], kind=UNREAD)
        yield Word('special', float(weights.sum() - pieces.sum()), SPECIAL)


def word_spans(encoding: Encoding, count: int) -> Iterator[tuple[int, int]]:
    """The first piece of each word among the first `count` pieces, and the one after its last."""
    first = 0
    for piece in range(1, count + 1):
        if piece == count or encoding.word_ids[piece] != encoding.word_ids[first]:
            yield first, piece
            first = piece
