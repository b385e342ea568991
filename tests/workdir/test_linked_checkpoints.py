"""Tests that a checkpoint, or the folder of all checkpoints, is never read through a link, which may lead anywhere."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter


@pytest.mark.parametrize('name', ['5', '.'])
@pytest.mark.parametrize('has_seal', [True, False])
def test_a_step_or_its_folder_that_is_a_link_is_not_read(tmp_path: Path, name: str, has_seal: bool):
    with CheckpointWriter(tmp_path / 'run', CheckpointConfig()) as checkpoints:
        for step in (2, 5):
            checkpoints.save(step, {'kernel': jnp.full(4, step, jnp.float32)}, record={})
    folder = checkpoints.reader.folder
    if not has_seal:  # the checkpoint of a version that had no checksums
        shutil.rmtree(folder / '2')
        (folder / '5' / 'record' / 'metadata').write_text(json.dumps({'step': 5}))
        (folder / '5' / 'seal-0-of-1.sha256').unlink()
    path = folder / name
    path.rename(tmp_path / 'elsewhere')
    path.symlink_to(tmp_path / 'elsewhere')
    reader = CheckpointReader(tmp_path / 'run')
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    layout = {'kernel': jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)}
    assert reader.find_damage(5) == f'{path} is a link'
    with pytest.raises(InputError, match=f'^checkpoint {folder}/5 is damaged: {path} is a link'):
        reader.restore(layout, 5)
    if name == '5' and has_seal:
        assert reader.restore(layout).step == 2
