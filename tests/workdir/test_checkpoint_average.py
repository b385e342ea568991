"""Tests that the mean of the last checkpoints is correct, uses undamaged steps only, and is refused in one line if
impossible.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.checkpoint_average import (
    AverageChoice,
    last_complete_steps,
    parse_checkpoint_choice,
    restore_average,
)
from efficient_attention.workdir.checkpoint_reader import BestChoice, CheckpointReader
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter

STEPS = (2, 5, 9, 12)


def state_of(step: int) -> dict[str, Any]:
    draw = np.random.default_rng(step).standard_normal
    params = {'kernel': jnp.asarray(draw((3, 4)), jnp.float32), 'half': jnp.asarray(draw(5), jnp.bfloat16)}
    return {'params': params, 'step': jnp.int32(step)}


def abstract() -> Any:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    laid = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)  # noqa: E731
    return {'params': jax.tree.map(laid, state_of(0)['params'])}


@pytest.fixture
def reader(tmp_path: Path) -> CheckpointReader:
    """Returns the reader of a workdir with the steps 2, 5, 9 and 12, of which the last three are kept."""
    with CheckpointWriter(tmp_path, CheckpointConfig(keep=3)) as checkpoints:
        for step in STEPS:
            checkpoints.save(step, state_of(step), record={'note': step}, metrics={'loss': 1.0})
    return CheckpointReader(tmp_path)


def test_the_mean_is_that_by_hand(reader: CheckpointReader, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        found = restore_average(reader, abstract(), 3)
    assert found.step == 12 and found.record['note'] == 12 and found.record['averaged'] == [5, 9, 12]
    assert 'the parameters are the mean of the checkpoints of steps 5, 9, 12' in caplog.messages
    for name, leaf in found.state['params'].items():
        parts = [np.asarray(state_of(step)['params'][name]).astype(np.float64) for step in STEPS[1:]]
        expected = sum(parts) / 3
        assert leaf.dtype == abstract()['params'][name].dtype and leaf.devices() == {jax.devices()[1]}
        if leaf.dtype == jnp.float32:
            np.testing.assert_allclose(leaf, expected, rtol=0, atol=3e-7)
        else:  # the mean is summed in float32 and rounded once
            np.testing.assert_array_equal(leaf, jnp.asarray(expected, jnp.bfloat16))


def test_a_step_that_is_kept_as_the_best_is_none_of_the_last(tmp_path: Path):
    config = dataclasses.replace(RunConfig(), checkpoint=CheckpointConfig(keep=2, keep_best=1, best_metric='loss'))
    (tmp_path / 'config.json').write_text(json.dumps(to_dict(config)))
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        for step, loss in zip(STEPS, (0.1, 3.0, 2.0, 1.0), strict=True):
            checkpoints.save(step, state_of(step), record={}, metrics={'loss': loss})
    reader = CheckpointReader(tmp_path)
    assert reader.complete_steps() == [2, 9, 12] and last_complete_steps(reader, 2) == [9, 12]
    with pytest.raises(InputError, match=r'keeps 2 \(9, 12\): train with checkpoint.keep of at least 3'):
        last_complete_steps(reader, 3)


def test_a_mean_of_one_is_that_checkpoint(reader: CheckpointReader):
    found = restore_average(reader, abstract(), 1).state
    jax.tree.map(np.testing.assert_array_equal, found, {'params': state_of(12)['params']})


def test_fewer_checkpoints_are_refused(reader: CheckpointReader, tmp_path: Path):
    said = (
        f'the mean of 5 checkpoints needs as many; {reader.folder} keeps 3 (5, 9, 12): '
        'train with checkpoint.keep of at least 5'
    )
    for read in (
        lambda: last_complete_steps(reader, 5),
        lambda: parse_checkpoint_choice(reader, 'average-5', metric='', mode='min'),
    ):
        with pytest.raises(InputError) as raised:
            read()
        assert str(raised.value) == said
    with pytest.raises(InputError, match='^there is no checkpoint in '):
        last_complete_steps(CheckpointReader(tmp_path / 'none'), 2)


def test_a_damaged_checkpoint_is_refused(reader: CheckpointReader):
    file = next(
        path for path in sorted((reader.folder / '9').rglob('*')) if path.is_file() and path.stat().st_size > 40
    )
    file.write_bytes(file.read_bytes()[:-1] + b'?')
    with pytest.raises(InputError, match=r'^checkpoint \S+/9 is damaged: .*; other steps: 5, 12$'):
        restore_average(reader, abstract(), 3)
    assert restore_average(reader, abstract(), 1).step == 12


def test_a_step_that_a_trainer_removes_meanwhile_is_left_for_a_newer_one(reader: CheckpointReader, monkeypatch):
    """The reader has listed the steps before a save that removes the oldest of them."""
    steps = iter([[2, 5, 9], *[[5, 9, 12]] * 9])
    monkeypatch.setattr(reader, 'complete_steps', lambda: next(steps))
    monkeypatch.setattr(reader, 'written_steps', lambda: [5, 9, 12])
    assert restore_average(reader, abstract(), 3).record['averaged'] == [5, 9, 12]


def test_other_choices_are_those_of_the_reader(reader: CheckpointReader):
    assert parse_checkpoint_choice(reader, 'average-3', metric='', mode='min') == AverageChoice(3)
    assert (
        parse_checkpoint_choice(reader, '9', metric='', mode='min') == 9
        and parse_checkpoint_choice(reader, 'last', metric='', mode='min') is None
    )
    assert parse_checkpoint_choice(reader, 'best', metric='loss', mode='min') == BestChoice('loss', 'min')
    with pytest.raises(InputError, match=r"^checkpoint 'average-0' is none of "):
        parse_checkpoint_choice(reader, 'average-0', metric='', mode='min')
