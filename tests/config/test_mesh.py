"""The fields of the mesh: by default all devices lie along the data axis."""

import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.errors import InputError


def test_all_devices_spread_rows_by_default():
    assert MeshConfig() == MeshConfig(data=0, fsdp=1, tensor=1)


@pytest.mark.parametrize('axis, least', [('data', 0), ('fsdp', 1), ('tensor', 1)])
def test_an_axis_without_a_device_is_refused(axis: str, least: int):
    with pytest.raises(InputError, match=f'mesh.{axis} is {least - 1}; it must be'):
        MeshConfig(**{axis: least - 1})
