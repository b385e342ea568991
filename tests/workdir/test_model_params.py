"""Tests that the requested parameters of a checkpoint are restored as the model uses them, on the given devices."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.training.run import build_run
from efficient_attention.workdir.checkpoint_average import AverageChoice
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.model_params import restore_params
from tests.training.tiny_fine_tuning import tiny_config
from tests.training.tiny_run import drawn_workdir


def lay_out(shapes: Any) -> Any:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)


def test_parameters_are_masked_where_the_run_prunes_them(tmp_path: Path):
    """Masks come from the weights' size, or from scores in the state. tests/inference/test_restore.py tests unpruned
    runs.
    """
    fields = {'prune.begin': 0.0, 'prune.end': 0.0, 'prune.keep': 0.5, 'model.layers': 1}
    for method in ('magnitude', 'random'):
        config = tiny_config(tmp_path, **{'prune.method': method}, **fields)
        run = build_run(config, jax.devices()[:1])
        state = run.init_random_state()
        workdir = drawn_workdir(run, tmp_path / method, state)
        abstract = lay_out(run.abstract_state.params)
        found = restore_params(CheckpointReader(workdir), config, abstract, None, lay_out)
        with pytest.raises(InputError, match=f"the run prunes .prune.method '{method}'., and the mean of checkpoints"):
            restore_params(CheckpointReader(workdir), config, abstract, AverageChoice(1), lay_out)
        expected = run.evaluation_params_fn(state)
        jax.tree.map(np.testing.assert_array_equal, found.state, expected)
        kernel = found.state['encoder']['stack']['layers']['feed_forward']['up']['kernel']
        assert (np.asarray(kernel) == 0.0).mean() == 0.5
        assert kernel.devices() == {jax.devices()[1]} and found.step == 0
