"""An encoder's vectors as the outputs of an evaluation."""

from typing import Any

from jax import Array

from efficient_attention.objectives.objective import Batch, Objective, Sums


class Vectors(Objective):
    """No loss; what an encoder says of a row is its last layer's vectors."""

    has_outputs = True
    token_outputs = frozenset({'vectors'})

    def weights(self, batch: Batch) -> dict[str, Array]:  # noqa: ARG002
        """No terms."""
        return {}

    def sums(self, model: Any, batch: Batch, rng: Array | None, step: Array | int = 0) -> Sums:  # noqa: ARG002
        """No terms."""
        return {}

    def outputs(self, model: Any, batch: Batch, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """'vectors' [B, L, D] of an `Encoder`."""
        has_types = model.config.token_types > 1
        types_BL = batch['token_types'] if has_types else None
        return {'vectors': model(batch['tokens'], batch['segments'], token_types_BL=types_BL, rng=rng, step=step)}

    def sums_of(self, outputs: dict[str, Array], batch: Batch) -> Sums:  # noqa: ARG002
        """No terms."""
        return {}
