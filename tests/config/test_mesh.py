"""The fields of the mesh: by default all devices lie along the data axis."""

from efficient_attention.config.mesh import MeshConfig


def test_all_devices_spread_rows_by_default():
    assert MeshConfig() == MeshConfig(data=0, fsdp=1, tensor=1)
