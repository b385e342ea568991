"""Decides which layer activations distillation compares between student and teacher, and how a batch stores them."""

from collections.abc import Collection, Sequence

import numpy as np
from jax import Array
from jaxtyping import Float

from efficient_attention.models.layer_activations import DistillationActivations
from efficient_attention.objectives.objective import Batch

TEACHER = 'teacher_'  # name prefix of the teacher's arrays in a batch
OPERANDS = {'attention': ('query', 'key'), 'attention_relations': ('query', 'key'), 'value_relations': ('value',)}


def compared_states(inside: DistillationActivations, terms: Collection[str], layers: Sequence[int]) -> dict[str, Array]:
    """Returns the layer activations that the given distillation terms compare, each [layers, rows, ...].

    Args:
        inside: activations of the student or of the teacher.
        terms: of `config.distill.INSIDE`.
        layers: numbers of the model's compared layers, in this order, counted from 1.

    Returns:
        'hidden', 'embeddings' and 'cosine' (of the last layer) [N, B, L, D]; 'query', 'key', 'value' [N, B, L, H, K].
    """
    numbers = np.asarray(layers, np.int64)
    states = {'hidden': numbers, 'embeddings': np.array([0]), 'cosine': np.array([-1])}
    found = {name: inside.states_NBLD[places] for name, places in states.items() if name in terms}
    for name in sorted({name for term in terms for name in OPERANDS.get(term, ())}):
        assert inside.attention is not None
        array = getattr(inside.attention, 'query_BLHK' if name == 'query' else f'{name}_BMHK')
        found[name] = array[numbers - 1]
    return found


def teacher_states_for_batch(arrays: dict[str, Array], rows: int) -> Batch:
    """Returns the teacher's activations under their names in a batch, with the axis of batch rows first.

    An example with choices is several encoder rows, which stay together: [rows, choices, layers, ...].
    """
    return {f'{TEACHER}{name}': move_rows_first(array, rows) for name, array in arrays.items()}


def move_rows_first(array: Float[Array, '...'], rows: int) -> Float[Array, '...']:
    """Reshapes an array [layers, encoder rows, ...] to [batch rows, encoder rows per batch row, layers, ...]."""
    array = array.swapaxes(0, 1)
    return array.reshape(rows, -1, *array.shape[1:])


def teacher_state_from_batch(batch: Batch, name: str) -> Array:
    """Returns one of the teacher's activations from a batch, in the shape [layers, encoder rows, ...].

    `compared_states` returns the student's activations in the same shape.
    """
    array = batch[f'{TEACHER}{name}']
    return array.reshape(-1, *array.shape[2:]).swapaxes(0, 1)
