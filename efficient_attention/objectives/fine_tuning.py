"""The losses of fine-tuning heads: of classes, numbers, tags, choices, spans and multi-hop answers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.config.head import OF_ROWS, HeadConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.objectives.objective import Batch, OutputObjective, Sums, is_top_prediction, weighted_sums

TERM = 'fine_tuning'


@dataclasses.dataclass(frozen=True)
class FineTuning(OutputObjective):
    """The mean fine-tuning loss over rows, or over tagged tokens.

    - Classes, tags and choices: cross-entropy.
    - A single output: squared error.
    - Spans: the mean of the cross-entropies of start and end over the row's positions (Devlin et al. 2018, section
      4.2).
    - Multi-hop: the span loss if the answer is a span, plus the answer type's cross-entropy, plus the mean binary
      cross-entropy of the row's sentences.
    """

    head: HeadConfig

    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the total weight of rows with a label, or of tokens with a tag; returns an empty dict if the batch
        has no labels.
        """
        if not is_labelled(batch):
            return {}
        if self.head.kind == 'token':
            return {TERM: tag_weights(batch).sum()}
        return {TERM: batch['weights'].sum()}

    def sums(
        self, model: FineTuningModel, batch: Batch, carry: Any, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, Any]:
        """Returns the sums of the loss and of correct predictions over a batch, and `carry` unchanged."""
        return self.sums_of(model.outputs(batch, rng=rng, step=step), batch), carry

    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """Returns the sums of the loss and of correct predictions, from the outputs of a `FineTuningModel`.

        A regression head has no correct predictions.

        Labels of rows with weight 0 are ignored. The result is empty if the batch has no labels.
        """
        if not is_labelled(batch):
            return {}
        logits, weights = outputs['logits'], batch['weights']
        if self.head.kind == 'token':
            return {TERM: class_sums(logits, jnp.maximum(batch['labels'], 0), tag_weights(batch))}
        if self.head.kind in ('span', 'multi_hop'):
            has_span = (batch['type'] == 0).astype(weights.dtype) if self.head.kind == 'multi_hop' else 1.0
            sums = span_sums(logits, batch['start'], batch['end'], weights * has_span)
            if self.head.kind == 'multi_hop':
                sums['loss'] += class_sums(outputs['type'], batch['type'], weights)['loss']
                sums['loss'] += support_loss(outputs['support'], batch['support'], weights)
            return {TERM: sums}
        if self.head.kind in OF_ROWS and self.head.outputs == 1:
            errors = jnp.square(logits[:, 0] - batch['label'])
            return {TERM: {'loss': (errors * weights).sum()}}
        return {TERM: class_sums(logits, batch['label'], weights)}


def is_labelled(batch: Batch) -> bool:
    """Returns whether the batch has labels of any kind."""
    return any(name in batch for name in ('label', 'labels', 'start'))


def tag_weights(batch: Batch) -> Array:
    """Returns the weight of each token, [rows, tokens]: the weight of its row if the token has a tag, otherwise 0."""
    return batch['weights'][:, None] * (batch['labels'] >= 0).astype(jnp.float32)


def class_sums(logits: Float[Array, '*b C'], labels: Int[Array, '*b'], weights: Float[Array, '*b']) -> dict[str, Array]:
    """Returns the weighted sums over examples of the cross-entropy ('loss') and of correct classes ('accuracy')."""
    return weighted_sums(cross_entropy(logits, labels), is_top_prediction(logits, labels), weights)


def span_sums(logits_BL2: Array, start_B: Array, end_B: Array, weights_B: Array) -> dict[str, Array]:
    """Returns the weighted sums over rows of the span loss ('loss') and of correct spans ('accuracy').

    The loss is the mean of the losses of start and end. A span is correct if start and end are correct.
    """
    start, end = (cross_entropy(logits_BL2[..., i], label) for i, label in enumerate((start_B, end_B)))
    is_right = (logits_BL2.argmax(axis=1) == jnp.stack([start_B, end_B], axis=1)).all(axis=1)
    return weighted_sums((start + end) / 2, is_right, weights_B)


def support_loss(logits_BL: Array, labels_BL: Array, weights_B: Array) -> Array:
    """Returns the binary cross-entropy of sentence markers: the mean over the markers of each row, summed over rows
    with the rows' weights.

    Labels are 0 and 1 at markers, -1 elsewhere.
    """
    is_marker = (labels_BL >= 0).astype(logits_BL.dtype)
    # Optax's sigmoid_binary_cross_entropy differs in the last bits for label 1, which would change recorded losses.
    losses = jax.nn.softplus(logits_BL) - logits_BL * jnp.maximum(labels_BL, 0.0)
    means_B = (losses * is_marker).sum(axis=1) / jnp.maximum(is_marker.sum(axis=1), 1.0)
    return (means_B * weights_B).sum()
