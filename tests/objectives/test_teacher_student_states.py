"""Tests that a teacher's arrays come out of a batch as they went into it."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.models.layer_activations import DistillationActivations
from efficient_attention.modules.attention import AttentionOperands
from efficient_attention.objectives.teacher_student_states import (
    compared_states,
    teacher_state_from_batch,
    teacher_states_for_batch,
)

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (jnp.asarray(RNG.normal(size=(3, 6, 5, 2, 4))) for _ in range(3))
INSIDE = DistillationActivations(
    jnp.asarray(RNG.normal(size=(4, 6, 5, 8))), AttentionOperands(QUERY, KEY, value_BMHK=VALUE)
)
ALL = ('cosine', 'hidden', 'embeddings', 'attention', 'value_relations')


def test_states_count_from_the_embeddings_and_attention_from_the_first_layer():
    found = compared_states(INSIDE, ALL, (1, 3))
    assert set(found) == {'cosine', 'hidden', 'embeddings', 'query', 'key', 'value'}
    np.testing.assert_array_equal(found['hidden'], INSIDE.states_NBLD[jnp.array([1, 3])])
    np.testing.assert_array_equal(found['embeddings'], INSIDE.states_NBLD[:1])
    np.testing.assert_array_equal(found['cosine'], INSIDE.states_NBLD[-1:])
    np.testing.assert_array_equal(found['value'], VALUE[jnp.array([0, 2])])


def test_only_what_a_term_needs_is_taken():
    assert set(compared_states(INSIDE, ('hidden',), (1,))) == {'hidden'}
    assert set(compared_states(DistillationActivations(INSIDE.states_NBLD, None), ('cosine',), (3,))) == {'cosine'}


@pytest.mark.parametrize('rows', [6, 3])  # 3 rows have two choices each
def test_arrays_come_out_of_a_batch_as_they_went_in(rows: int):
    arrays = compared_states(INSIDE, ALL, (2, 3))
    batch = teacher_states_for_batch(arrays, rows)
    assert all(array.shape[:2] == (rows, 6 // rows) for array in batch.values())
    for name, array in arrays.items():
        np.testing.assert_array_equal(teacher_state_from_batch(batch, name), array)
