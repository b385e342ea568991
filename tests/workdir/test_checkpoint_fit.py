"""Tests the comparison of a checkpoint's arrays with the arrays of the model that reads it."""

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.checkpoint_reader import ArraySpec, array_specs, check_arrays_match

SAVED = {'params/kernel': ArraySpec((2, 3), 'float32'), 'opt_state/0/mu/kernel': ArraySpec((2, 3), 'float32')}


def test_leaves_carry_path_shape_and_dtype_of_arrays_and_abstract_arrays():
    tree = {'params': [jnp.zeros((2, 3), jnp.bfloat16)], 'step': jax.ShapeDtypeStruct((), jnp.int32)}
    assert array_specs(tree) == {'params/0': ArraySpec((2, 3), 'bfloat16'), 'step': ArraySpec((), 'int32')}


def test_equal_trees_fit():
    check_arrays_match(SAVED, dict(SAVED), where='checkpoint x')


def test_parameters_are_named_before_optimizer_state():
    wanted = {name: ArraySpec((2, 4), 'float32') for name in SAVED}
    with pytest.raises(InputError) as caught:
        check_arrays_match(SAVED, wanted, where='checkpoint x')
    assert str(caught.value) == (
        'checkpoint x is from another model: '
        'params/kernel is float32 [2, 3] in the checkpoint and float32 [2, 4] in this model; '
        'opt_state/0/mu/kernel is float32 [2, 3] in the checkpoint and float32 [2, 4] in this model'
    )


def test_many_differences_are_counted():
    wanted = {f'params/{index}': ArraySpec((), 'float32') for index in range(10)}
    with pytest.raises(InputError, match=r'params/0 is missing.*params/1 is.*params/2 is[^;]*; and 7 more$'):
        check_arrays_match({}, wanted, where='checkpoint x')
