"""Which picture of an encoder should one believe? Scores the tokens of its rows in five ways, and leaves tokens out.

The functions of `agreement.py` compute the scores from arrays; this file reads the arrays of an encoder.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.attention.request import Lengths
from efficient_attention.inference.attention_pipeline import AttentionPipeline, EncoderRows, TokenRow
from efficient_attention.inference.attribution_pipeline import AttributionPipeline, reads_whole_texts
from efficient_attention.inference.input_gradients import GradientTimesInput, IntegratedGradients
from efficient_attention.inspection.agreement import (
    attention_flow,
    attention_rollout,
    leave_one_out,
    rank_correlation,
    raw_weights,
)
from efficient_attention.models.encoder import Encoder

MOST_TOKENS = 48  # longer rows are cut, because attention flow takes long
LEAST_TOKENS = 3  # rows with fewer tokens of text have no rank correlation that says anything
KINDS = {'raw weights': raw_weights, 'attention rollout': attention_rollout, 'attention flow': attention_flow}


def compare_pictures(pipeline: AttentionPipeline, rows: Sequence[TokenRow], count: int) -> dict[str, Any]:
    """Returns Spearman's rank correlation of each kind of token scores with the change that leaving tokens out makes.

    The output of a classifier that reads the first token is the logit of the label it gives the unchanged row. That of
    another encoder is the first token's final vector, projected on its direction for the unchanged row. Special tokens
    are neither replaced nor scored.

    Args:
        pipeline: a pipeline of an encoder with all layers and heads.
        rows: rows of texts; parts of at most `MOST_TOKENS` tokens are taken evenly from them.
        count: number of parts.
    """
    assert isinstance(pipeline.rows, EncoderRows)
    output, found, used = scored_output(pipeline.rows), dict[str, list[float]](), 0
    parts = [part for row in rows for part in parts_of_row(row, output.length)]
    chosen = np.unique(np.linspace(0, len(parts) - 1, count).astype(int)) if parts else ()
    for part in (parts[number] for number in chosen):
        used += 1
        places = text_places(part)
        changes = output.changes(part, places)
        for name, scores_L in token_scores(pipeline, output, part).items():
            found.setdefault(name, []).append(rank_correlation(np.abs(scores_L[places]), changes))
    finite = {name: [value for value in values if np.isfinite(value)] for name, values in found.items()}
    means = {
        name: {'mean': float(np.mean(values)), 'deviation': float(np.std(values))}
        for name, values in finite.items()
        if values
    }
    return {'output': output.name, 'rows': used, 'most_tokens': output.length, 'correlations': means}


def text_places(row: TokenRow) -> list[int]:
    """Returns the places of a row's tokens without special tokens."""
    return [place for place, number in enumerate(row.text_numbers) if number is not None]


def parts_of_row(row: TokenRow, length: int) -> list[TokenRow]:
    """Returns successive parts of a row with at most `length` tokens, each between the row's special tokens.

    Parts with fewer than `LEAST_TOKENS` tokens of text are left out.
    """
    texts = text_places(row)
    if not texts:
        return []
    before, after = [*range(texts[0])], [*range(texts[-1] + 1, len(row.names))]
    room, found = length - len(before) - len(after), []
    for start in range(0, len(texts), room) if room >= LEAST_TOKENS else ():
        kept = [*before, *texts[start : start + room], *after]
        if len(kept) >= len(before) + len(after) + LEAST_TOKENS:
            types_L, is_global_L = (None if x is None else x[kept] for x in (row.types_L, row.is_global_L))
            names, numbers = [row.names[at] for at in kept], [row.text_numbers[at] for at in kept]
            found.append(TokenRow(row.ids_L[kept], names, numbers, types_L, is_global_L))
    return found


def token_scores(
    pipeline: AttentionPipeline, output: 'FirstVector | LabelLogit', row: TokenRow
) -> dict[str, np.ndarray]:
    """Returns the scores of each token of a row for the output at its first token, by name of the kind of scores."""
    [window] = pipeline.read([row])
    weights_NLL = np.stack([layer['weights'].mean(0, dtype=np.float64) for layer in window['layers']])
    return {name: scores(weights_NLL, 0) for name, scores in KINDS.items()} | output.gradient_scores(row)


def scored_output(rows: EncoderRows) -> 'FirstVector | LabelLogit':
    """Returns the output of an encoder whose changes are compared with scores of tokens."""
    head = rows.pretrained.head
    if reads_whole_texts(head) and head.pooling == 'first':
        return LabelLogit(AttributionPipeline(rows.pretrained, rows.path, length=rows.length))
    return FirstVector(rows)


class LabelLogit:
    """The logit of the label that a classifier gives the unchanged row; of a regression, its only output.

    Attributes:
        name: the output in words.
        length: tokens to which rows are padded, so that each function is compiled once.
    """

    def __init__(self, classifier: AttributionPipeline) -> None:
        self.classifier = classifier
        self.name = 'the logit of the predicted label' if classifier.is_classifier else 'the predicted number'
        self.length = min(MOST_TOKENS, classifier.rows.length)
        self.gradient_times_input = GradientTimesInput(classifier.logit)

    def _embeddings(self, row: TokenRow, ids_L: np.ndarray) -> tuple[Any, Any]:
        """Returns the embeddings of a row with other ids, [L, D], and the padded row."""
        padded = row._replace(ids_L=ids_L).padded(self.length)
        return self.classifier.embeddings(self.classifier.params, padded, padded.tokens_BL), padded

    def logits(self, row: TokenRow, ids_L: np.ndarray) -> np.ndarray:
        """Returns the logits [C] of a row with other ids."""
        embeddings_LD, padded = self._embeddings(row, ids_L)
        return np.asarray(self.classifier.logits(embeddings_LD, self.classifier.params, padded), np.float32)

    def changes(self, row: TokenRow, places: Sequence[int]) -> np.ndarray:
        """Returns the change of the logit when the mask replaces the token at each place, [places]."""
        label = int(self.logits(row, row.ids_L).argmax())

        def output(ids_BL: np.ndarray) -> np.ndarray:
            return np.array([self.logits(row, ids_L)[label] for ids_L in ids_BL])

        return leave_one_out(output, row.ids_L, places, self.classifier.rows.encoder.mask)

    def gradient_scores(self, row: TokenRow) -> dict[str, np.ndarray]:
        """Returns the scores of gradient times input, and of integrated gradients from a row of masks, [L] each."""
        embeddings_LD, padded = self._embeddings(row, row.ids_L)
        label = jnp.int32(self.logits(row, row.ids_L).argmax())
        scores_L = self.gradient_times_input(embeddings_LD, self.classifier.params, padded, label)
        integrated_L = self.classifier.explain(row)['scores']
        return {'gradient times input': scores_L[: len(row.names)], 'integrated gradients': integrated_L}


class FirstVector:
    """The final vector of an encoder's first token, projected on its direction for the unchanged row.

    Attributes:
        name: the output in words.
        length: tokens to which rows are padded, so that each function is compiled once.
    """

    name = "the first token's final vector"

    def __init__(self, rows: EncoderRows) -> None:
        self.rows, model = rows, rows.model
        self.length = min(MOST_TOKENS, rows.length)
        assert isinstance(model, Encoder)
        self.graph, self.params = nnx.split(model)
        self.vectors = jax.jit(self._vectors)
        self.embeddings = jax.jit(self._embeddings)
        self.gradient_times_input = GradientTimesInput(self._projection)
        self.integrated_gradients = IntegratedGradients(self._projection)

    def _options(self, count: int, row: Any) -> dict[str, Any]:
        types_BL, is_global_BL = (
            None if x is None else jnp.broadcast_to(x, (count, x.shape[1])) for x in (row.types_BL, row.is_global_BL)
        )
        return {'token_types_BL': types_BL, 'is_global_BL': is_global_BL}

    def _vectors(self, params: Any, row: Any, ids_BL: Any) -> Any:
        """Returns the first tokens' final vectors, [B, D], where `ids_BL` replace the tokens of `row`."""
        segments = Lengths(jnp.full(ids_BL.shape[0], row.token_count))
        model = nnx.merge(self.graph, params)
        return model(ids_BL, segments, **self._options(ids_BL.shape[0], row))[:, 0]

    def _embeddings(self, params: Any, row: Any, ids_BL: Any) -> Any:
        segments = Lengths(row.token_count[None])
        return nnx.merge(self.graph, params).embedded(ids_BL, segments, **self._options(1, row))[0][0]

    def _projection(self, embeddings_LD: Any, params: Any, row: Any, direction_D: Any) -> Any:
        """Returns the projected output for given embeddings."""
        model = nnx.merge(self.graph, params)
        segments = Lengths(row.token_count[None])
        _, context = model.embedded(row.tokens_BL, segments, **self._options(1, row))
        return model.normed(model.stack(embeddings_LD[None], context))[0, 0].astype(jnp.float32) @ direction_D

    def direction(self, row: Any) -> Any:
        """Returns the unit vector of the unchanged output, float32 [D]."""
        vector_D = self.vectors(self.params, row, row.tokens_BL)[0].astype(jnp.float32)
        return vector_D / jnp.linalg.norm(vector_D)

    def changes(self, row: TokenRow, places: Sequence[int]) -> np.ndarray:
        """Returns the change of the output when the mask replaces the token at each place, [places]."""
        padded = row.padded(self.length)
        direction_D = np.asarray(self.direction(padded))

        def output(ids_BL: np.ndarray) -> np.ndarray:
            rows, tokens = ids_BL.shape
            ids_BL = np.pad(ids_BL, ((0, self.length + 1 - rows), (0, self.length - tokens)))
            return np.asarray(self.vectors(self.params, padded, jnp.asarray(ids_BL)), np.float32)[:rows] @ direction_D

        return leave_one_out(output, row.ids_L, places, self.rows.encoder.mask)

    def gradient_scores(self, row: TokenRow) -> dict[str, np.ndarray]:
        """Returns the scores of gradient times input, and of integrated gradients from a row of masks, [L] each."""
        padded = row.padded(self.length)
        direction_D = self.direction(padded)
        is_text_L = np.pad([number is not None for number in row.text_numbers], (0, self.length - len(row.names)))
        masked_BL = jnp.where(jnp.asarray(is_text_L), self.rows.encoder.mask, padded.tokens_BL)
        embeddings_LD = self.embeddings(self.params, padded, padded.tokens_BL)
        baseline_LD = self.embeddings(self.params, padded, masked_BL)
        given = (self.params, padded, direction_D)
        found = {
            'gradient times input': self.gradient_times_input(embeddings_LD, *given),
            'integrated gradients': self.integrated_gradients(embeddings_LD, baseline_LD, *given).scores_L,
        }
        return {name: scores_L[: len(row.names)] for name, scores_L in found.items()}
