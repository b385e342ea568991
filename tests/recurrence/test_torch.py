"""Tests cells against outputs of torch's layers: torch_cells.json, written by scripts/make_fixtures/torch_cells.py."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.recurrence.cells import find_cell
from efficient_attention.recurrence.run_cell import LearnedCell, run_cell
from tests.recurrence.test_run_cell import value_and_gradients
from tests.tolerances import assert_close

GIVEN = json.loads((Path(__file__).parent / 'torch_cells.json').read_text(encoding='utf-8'))
NAMES = {'weight_ih_l0': 'input', 'weight_hh_l0': 'recurrent', 'bias_ih_l0': 'bias', 'bias_hh_l0': 'recurrent_bias'}


@pytest.mark.parametrize('name', ['tanh', 'gru', 'lstm'])
def test_a_cell_is_torchs_forward_and_backward(name: str):
    """Torch's matrices are transposed, and its two biases are added where no gate multiplies the second one."""
    given = {key: np.asarray(one, np.float32) for key, one in GIVEN[name].items() if key != 'weights'}
    parts = {
        part: {
            NAMES[key]: np.asarray(one[part], np.float32).T if 'weight' in key else np.asarray(one[part], np.float32)
            for key, one in GIVEN[name]['weights'].items()
        }
        for part in ('value', 'gradient')
    }
    operands, expected = parts['value'], parts['gradient']
    if name != 'gru':
        operands['bias'] = operands['bias'] + operands.pop('recurrent_bias')
        del expected['recurrent_bias']
    cell = find_cell(name, given['x'].shape[-1], given['out'].shape[-1])
    operands = {key: jnp.asarray(one) for key, one in operands.items()}
    (_, out), gradients = value_and_gradients(
        lambda p, x: run_cell(LearnedCell(cell, p), x)[0], operands, jnp.asarray(given['x'])
    )
    assert_close(out, given['out'], within=1e-5)
    assert_close(gradients, (expected, given['of_x']), gradient=True)
