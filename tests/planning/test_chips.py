"""Tests the table of chips against the table of peak operations and the published memory sizes."""

import pytest

from efficient_attention.planning.chips import CHIPS, GIB
from efficient_attention.training.throughput import peak_flops

DEVICE_KINDS = {'v5e': 'TPU v5 lite', 'v5p': 'TPU v5', 'v6e': 'TPU v6 lite', 'h200': 'NVIDIA H200'}
PUBLISHED = {'v5e': 16, 'v5p': 95, 'v6e': 32, 'h200': 141}  # GB


@pytest.mark.parametrize('kind', CHIPS)
def test_a_chip_has_a_peak_and_no_more_memory_than_is_published(kind):
    chip = CHIPS[kind]
    assert peak_flops(DEVICE_KINDS[kind])
    assert 0.7 * PUBLISHED[kind] * 1e9 < chip.memory < 1.01 * PUBLISHED[kind] * GIB
    assert chip.link < chip.bandwidth
    assert chip.clock == 0 or 1e9 < chip.clock < 3e9
