"""The losses of fine-tuned heads: classes, numbers, tags, choices, spans and multi-hop answers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.config.head import HeadConfig
from efficient_attention.objectives.classification import classification_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums

NOWHERE = -1e9  # the logit of a position or choice that is padding
TERM = 'fine_tuning'
TOKEN_OUTPUTS = {
    'token': frozenset({'logits'}),
    'span': frozenset({'logits'}),
    'multi_hop': frozenset({'logits', 'support'}),
}


@dataclasses.dataclass(frozen=True)
class FineTuning(Objective):
    """The mean loss over rows, or over tagged tokens.

    Classes, tags and choices: cross-entropy. One output: squared error. Spans: the mean of the cross-entropies of start
    and end over the row's positions (Devlin et al. 2018, section 4.2). Multi-hop: the span where the answer is one,
    plus the type of answer, plus the mean binary cross-entropy of the row's sentences.
    """

    head: HeadConfig

    has_outputs = True

    @property
    def token_outputs(self) -> frozenset[str]:  # type: ignore[override]
        """The outputs with an axis of tokens."""
        return TOKEN_OUTPUTS.get(self.head.kind, frozenset())

    def weights(self, batch: Batch) -> dict[str, Array]:
        """Rows with a label, or tokens with a tag; no terms where the batch has no labels."""
        if not is_labelled(batch):
            return {}
        if self.head.kind == 'token':
            return {TERM: tag_weights(batch).sum()}
        return {TERM: batch['weights'].sum()}

    def outputs(self, model: Any, batch: Batch, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """The head's outputs; those of padding are out of reach of any softmax."""
        outputs = model(batch, rng=rng, step=step)
        if self.head.kind in ('span', 'multi_hop'):
            is_padding = batch['segments'] == 0
            outputs['logits'] = jnp.where(is_padding[..., None], NOWHERE, outputs['logits'])
        if self.head.kind == 'choice':
            outputs['logits'] = jnp.where((batch['segments'] > 0).any(axis=-1), outputs['logits'], NOWHERE)
        return outputs

    def sums(self, model: Any, batch: Batch, rng: Array | None, step: Array | int = 0) -> Sums:
        """Losses, and correct classes where there are classes."""
        return self.sums_of(self.outputs(model, batch, rng, step), batch)

    def sums_of(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """The sums from a batch's outputs; rows of weight 0 may hold anything as labels."""
        if not is_labelled(batch):
            return {}
        logits, weights = outputs['logits'], batch['weights']
        if self.head.kind == 'token':
            return {TERM: classification_sums(logits, jnp.maximum(batch['labels'], 0), tag_weights(batch))}
        if self.head.kind in ('span', 'multi_hop'):
            has_span = (batch['type'] == 0).astype(weights.dtype) if self.head.kind == 'multi_hop' else 1.0
            sums = span_sums(logits, batch['start'], batch['end'], weights * has_span)
            if self.head.kind == 'multi_hop':
                sums['loss'] += classification_sums(outputs['type'], batch['type'], weights)['loss']
                sums['loss'] += support_loss(outputs['support'], batch['support'], weights)
            return {TERM: sums}
        if self.head.kind == 'sequence' and self.head.outputs == 1:
            errors = jnp.square(logits[:, 0] - batch['label'])
            return {TERM: {'loss': (errors * weights).sum()}}
        return {TERM: classification_sums(logits, batch['label'], weights)}


def is_labelled(batch: Batch) -> bool:
    """Whether the batch has labels of any kind."""
    return any(name in batch for name in ('label', 'labels', 'start'))


def tag_weights(batch: Batch) -> Array:
    """The weight of each token [B, L]: that of its row where it has a tag."""
    return batch['weights'][:, None] * (batch['labels'] >= 0).astype(jnp.float32)


def span_sums(logits_BL2: Array, start_B: Array, end_B: Array, weights_B: Array) -> dict[str, Array]:
    """'loss', half of start's and half of end's, and 'accuracy' of both together, summed over rows."""
    start, end = (classification_losses(logits_BL2[..., i], label) for i, label in enumerate((start_B, end_B)))
    is_right = (logits_BL2.argmax(axis=1) == jnp.stack([start_B, end_B], axis=1)).all(axis=1)
    return {'loss': ((start + end) / 2 * weights_B).sum(), 'accuracy': (is_right.astype(jnp.float32) * weights_B).sum()}


def classification_losses(logits_BC: Array, labels_B: Array) -> Array:
    """The cross-entropy of each row, [B]."""
    chosen_B = jnp.take_along_axis(logits_BC, labels_B[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits_BC, axis=1) - chosen_B


def support_loss(logits_BL: Array, labels_BL: Array, weights_B: Array) -> Array:
    """The mean binary cross-entropy of each row's sentence markers (labels 0 and 1; -1 elsewhere), summed over rows."""
    is_marker = (labels_BL >= 0).astype(logits_BL.dtype)
    losses = jax.nn.softplus(logits_BL) - logits_BL * jnp.maximum(labels_BL, 0.0)
    means_B = (losses * is_marker).sum(axis=1) / jnp.maximum(is_marker.sum(axis=1), 1.0)
    return (means_B * weights_B).sum()
