"""The arrays by which a student is compared with its teacher, and how those of the teacher come with a batch."""

from collections.abc import Collection, Sequence

import numpy as np
from jax import Array
from jaxtyping import Float

from efficient_attention.models.taps import Inside
from efficient_attention.objectives.objective import Batch

TEACHER = 'teacher_'  # what the names of the teacher's arrays in a batch begin with
OPERANDS = {'attention': ('query', 'key'), 'attention_relations': ('query', 'key'), 'value_relations': ('value',)}


def compared(inside: Inside, terms: Collection[str], layers: Sequence[int]) -> dict[str, Array]:
    """What these terms compare, each array [layers, rows, ...].

    Args:
        inside: of the student or of the teacher.
        terms: of `config.distill.INSIDE`.
        layers: the model's layers that are compared, in this order, counted from 1.

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


def as_batch_arrays(arrays: dict[str, Array], rows: int) -> Batch:
    """A teacher's arrays with the rows of the batch first, by the names that they have in it.

    A row of choices is several rows of an encoder's, which stay together: [rows, choices, layers, ...].
    """
    return {f'{TEACHER}{name}': by_row(array, rows) for name, array in arrays.items()}


def by_row(array: Float[Array, '...'], rows: int) -> Float[Array, '...']:
    """[layers, encoder's rows, ...] to [rows, encoder's rows of each, layers, ...]."""
    array = array.swapaxes(0, 1)
    return array.reshape(rows, -1, *array.shape[1:])


def from_batch(batch: Batch, name: str) -> Array:
    """A teacher's array of `compared` in a batch, [layers, encoder's rows, ...] again."""
    array = batch[f'{TEACHER}{name}']
    return array.reshape(-1, *array.shape[2:]).swapaxes(0, 1)
