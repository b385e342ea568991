"""The pipeline `attribution`: how much each token adds to a classifier's logit."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.request import Lengths
from efficient_attention.config.head import HeadConfig
from efficient_attention.errors import InputError, advice_on_name, require
from efficient_attention.inference.attention_pipeline import (
    EncoderRows,
    PaddedRow,
    TokenRow,
    check_input,
    warn_of_windows,
)
from efficient_attention.inference.input_gradients import IntegratedGradients
from efficient_attention.inference.per_item_errors import map_items
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.interop.config_import import default_labels
from efficient_attention.interop.pretrained import Pretrained, check_encoder, open_pretrained
from efficient_attention.models.fine_tuning import FineTuningModel


class AttributionPipeline:
    """A pipeline that splits a classifier's logit among the tokens, by integrated gradients.

    Source: Sundararajan et al. 2017, arXiv 1703.01365. The baseline is the same row with [MASK] for each token of text.

    Args:
        pretrained: a checkpoint with one vector of logits per text.
        path: the checkpoint's path, for messages.
        label: name of the label whose logit is explained; '' = the label with the largest logit.
        length: most tokens of a window; 0 = as many as the model reads.

    Raises:
        InputError: the checkpoint is no such classifier, or has no such label.
    """

    def __init__(self, pretrained: Pretrained, path: Path, *, label: str = '', length: int = 0) -> None:
        check_encoder(path, pretrained)
        config, head = pretrained.model, pretrained.head
        if not reads_whole_texts(head):
            raise InputError(f'{path}: attribution needs a classifier or a regression that reads whole texts')
        self.labels = pretrained.labels or default_labels(head.outputs)
        require(isinstance(label, str), 'label', label, 'the name of a label, a text')
        if label and label not in self.labels:
            raise InputError(f'there is no label {label!r}; {advice_on_name(label, self.labels)}')
        self.label = self.labels.index(label) if label else None
        self.is_classifier = head.outputs > 1
        self.rows = EncoderRows(pretrained, path, length)
        model = pretrained_module(lambda rngs: FineTuningModel(config, head, rngs=rngs), pretrained)
        self.graph, self.params = nnx.split(model)
        self.logits, self.embeddings = jax.jit(self._logits), jax.jit(self._embeddings)
        self.integrated = IntegratedGradients(self.logit)

    def __call__(self, inputs: Any) -> Any:
        """Returns the windows of a text or of a tuple of two texts; for a list, a list of these.

        A window is a dict:

            'tokens'    the L tokens, as texts
            'texts'     the text of each token: 0 or 1, the place in the tuple; None for special tokens
            'label'     the label whose logit is explained; None for a regression
            'logit'     its logit
            'baseline'  its logit if [MASK] replaces each token of text
            'scores'    float64 [L]; they sum to 'logit' - 'baseline' within 1 %

        A long text has several windows, and a UserWarning says so.

        Raises:
            InputError: an input is no text, or a pair does not fit a row.
            RunError: the scores do not add up.
        """
        is_list = isinstance(inputs, list)
        rows = map_items(inputs if is_list else [inputs], self.rows_of)
        for parts in rows:
            warn_of_windows(parts, stacklevel=3)
        found = [[self.explain(row) for row in parts] for parts in rows]
        return found if is_list else found[0]

    def rows_of(self, text: Any) -> list[TokenRow]:
        """Returns the rows of a text or of two texts; raises InputError for anything else."""
        check_input(text)
        return self.rows.windows(text)

    def explain(self, row: TokenRow) -> dict[str, Any]:
        """Returns the dict of one window."""
        length = self.rows.padded_length(len(row.ids_L))
        padded = row.padded(length)
        is_text_L = np.pad([number is not None for number in row.text_numbers], (0, length - len(row.names)))
        masked_BL = jnp.where(jnp.asarray(is_text_L)[None], self.rows.encoder.mask, padded.tokens_BL)
        ends_LD = (self.embeddings(self.params, padded, ids_BL) for ids_BL in (padded.tokens_BL, masked_BL))
        embeddings_LD, baseline_LD = ends_LD
        logits_C = np.asarray(self.logits(embeddings_LD, self.params, padded))
        chosen = int(logits_C.argmax()) if self.label is None else self.label
        found = self.integrated(embeddings_LD, baseline_LD, self.params, padded, jnp.int32(chosen))
        return {
            'tokens': row.names,
            'texts': row.text_numbers,
            'label': self.labels[chosen] if self.is_classifier else None,
            'logit': float(logits_C[chosen]),
            'baseline': float(logits_C[chosen]) - found.change,
            'scores': found.scores_L[: len(row.names)],
        }

    def _embeddings(self, params: Any, row: PaddedRow, ids_BL: Array) -> Array:
        """Returns the embeddings [L, D] of a row with these ids."""
        model = nnx.merge(self.graph, params)
        return model.encoder.embedded(ids_BL, Lengths(row.token_count[None]), **row.options())[0][0]

    def _logits(self, embeddings_LD: Array, params: Any, row: PaddedRow) -> Array:
        """Returns the logits [C] of a row with these embeddings in place of those of its tokens."""
        model, segments = nnx.merge(self.graph, params), Lengths(row.token_count[None])
        _, context = model.encoder.embedded(row.tokens_BL, segments, **row.options())
        x_BLD = model.encoder.normed(model.encoder.stack(embeddings_LD[None], context))
        batch = {'segments': segments.segments(row.tokens_BL.shape[1])}
        return model.head_outputs(x_BLD, batch, None)['logits'][0]

    def logit(self, embeddings_LD: Array, params: Any, row: PaddedRow, label: Array) -> Array:
        """Returns one logit, for its gradient."""
        return self._logits(embeddings_LD, params, row)[label]


def reads_whole_texts(head: HeadConfig) -> bool:
    """Returns whether a head gives one vector of logits per text, from the last hidden states of its tokens."""
    return head.kind == 'sequence' and head.features != 'mix' and not head.sentence_layers


def open_attribution_pipeline(path: Path, checkpoint: str, options: dict[str, Any]) -> AttributionPipeline:
    """Returns the pipeline `attribution` of the classifier in a folder.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint, as in `open_pretrained`.
        options: `label` and `length`, see `AttributionPipeline`.

    Raises:
        InputError: an option is unknown; also as `open_pretrained` and `AttributionPipeline`.
    """
    known = ('label', 'length')
    if unknown := sorted(options.keys() - {*known}):
        raise InputError(f'unknown options: {", ".join(unknown)}; known: {", ".join(known)}')
    return AttributionPipeline(open_pretrained(path, checkpoint), path, **options)
