"""Sums become means once, by the weights of everything that was summed."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.objectives.objective import Objective, mean_metrics, total_loss

SUMS = {
    'masked_lm': {'loss': jnp.float32(12.0), 'accuracy': jnp.float32(3.0)},
    'pair': {'loss': jnp.float32(5.0), 'accuracy': jnp.float32(1.0)},
}
WEIGHTS = {'masked_lm': jnp.float32(6.0), 'pair': jnp.float32(2.0)}


def test_the_terms_means_are_added():
    assert total_loss(SUMS, WEIGHTS) == 12 / 6 + 5 / 2


def test_every_metric_has_its_terms_name_and_mean():
    expected = {'masked_lm_loss': 2.0, 'masked_lm_accuracy': 0.5, 'pair_loss': 2.5, 'pair_accuracy': 0.5}
    assert {name: float(value) for name, value in mean_metrics(SUMS, WEIGHTS).items()} == expected


def test_a_term_without_weight_counts_0_and_not_nan():
    nothing = {'loss': jnp.float32(0.0), 'accuracy': jnp.float32(0.0)}
    sums, weights = SUMS | {'pair': nothing}, WEIGHTS | {'pair': jnp.float32(0.0)}
    assert total_loss(sums, weights) == 2.0
    assert mean_metrics(sums, weights)['pair_loss'] == 0.0


@pytest.mark.parametrize('weight', [0.125, 1.0, 1.5, 40.0])
def test_a_term_of_any_weight_is_divided_by_it(weight: float):
    """Weights are fractions of one another, so that their sum may lie below 1."""
    sums, weights = SUMS, WEIGHTS | {'pair': jnp.float32(weight)}
    np.testing.assert_allclose(total_loss(sums, weights), 12 / 6 + 5 / weight, rtol=1e-6)
    np.testing.assert_allclose(mean_metrics(sums, weights)['pair_accuracy'], 1 / weight, rtol=1e-6)


def test_the_mean_over_parts_by_all_weights_is_the_mean_over_the_whole():
    losses, weights = np.random.default_rng(0).random((2, 12))
    total = {'term': jnp.float32(weights.sum())}
    parts = [{'term': {'loss': jnp.float32((losses * weights)[part].sum())}} for part in (slice(2), slice(2, None))]
    together = sum(total_loss(part, total) for part in parts)
    np.testing.assert_allclose(together, (losses * weights).sum() / weights.sum(), rtol=1e-6)


def test_an_objective_must_say_weights_and_sums():
    with pytest.raises(TypeError, match='abstract'):
        Objective()
