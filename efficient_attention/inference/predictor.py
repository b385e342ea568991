"""Outputs of a model for rows of tokens: batches of similar length through one compiled step for each length."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.examples import BUCKETS
from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.inference.eval_step import make_output_step
from efficient_attention.inference.evaluate import evaluate_outputs
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.tasks.problems.problem import Feature

READ = ('tokens', 'token_types', 'lengths', 'is_global')  # of a feature; labels are not


class Predictor:
    """A model that has outputs, ready for rows of any length up to its own.

    Attributes:
        length: of the longest row that the model takes, tokens.
    """

    def __init__(
        self,
        model: FineTuningModel | Encoder,
        *,
        length: int,
        pad: int,
        batch_size: int = 32,
        is_row_alone: bool = False,
        sentences: int = 0,
    ) -> None:
        """`is_row_alone` and `sentences`: see `FeatureBatches`."""
        graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)
        self.length, self.pad, self.batch_size, self.is_row_alone = length, pad, batch_size, is_row_alone
        self.token_outputs, self.sentences = model.token_outputs, sentences
        self.step = jax.jit(make_output_step(graph))

    def __call__(self, features: Sequence[Feature]) -> list[dict[str, np.ndarray]]:
        """The outputs of each row, in order, without padding; labels are not looked at."""
        if not features:
            return []
        rows = [{name: array for name, array in feature.items() if name in READ} for feature in features]
        size = min(self.batch_size, len(rows))
        sizes = BUCKETS, self.length, size, self.pad
        batches = FeatureBatches(rows, *sizes, is_row_alone=self.is_row_alone, sentences=self.sentences)
        to_devices = lambda batch: jax.tree.map(jnp.asarray, batch)  # noqa: E731
        return evaluate_outputs(self.step, self.params, batches.evaluation(0, 1), to_devices, self.token_outputs)[1]
