"""Measures the time of the backend `blocked`, forward with gradients, at several sizes of its tiles and of its steps.

A tile is a square block of query-key pairs. The loop of `blocked` computes several tiles in a step; the step size
limits their scores. The script changes only these constants: `Softmax.tile`, and `tile_step_bytes` and
`shared_tile_step_bytes` of `efficient_attention/attention/devices.py`. The tiles of splash attention are not measured,
because splash attention runs only on TPUs. To measure another backend with tiles, add its cases to `list_cases`.
"""

import dataclasses
import functools
from typing import Any

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import MIB, device_tuning, using_device_tuning
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.attention.softmax.definition import Softmax
from scripts.benchmarks.gpu.attention import HEAD_WIDTH, HEADS, WITH_GRADIENTS, random_arrays, with_gradients_of
from scripts.benchmarks.gpu.cases import Case, Settings, measure_program

LENGTH, DRY_LENGTH = 16_384, 64
PATTERNS = ('causal & window(512)', 'bigbird(64, 3)', 'sparse_strided(128)', 'causal')
TILES = (64, 128, 256)  # positions
STEPS = (128, 32, 512)  # MiB of float32 scores in a step; the first is the default on GPUs


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case per pattern, step size and tile size."""
    length = DRY_LENGTH if settings.is_dry else LENGTH
    patterns, tiles, steps = (PATTERNS[-1:], (16,), (1,)) if settings.is_dry else (PATTERNS, TILES, STEPS)
    return [
        Case(
            f'{text} {length} forward+gradients',
            f'blocked, tile {tile}, step {step} MiB',
            functools.partial(measure_tile, text, length, (tile, step * MIB), settings),
        )
        for step in steps
        for text in patterns
        for tile in tiles
    ]


def measure_tile(text: str, length: int, sizes: tuple[int, int], settings: Settings) -> dict[str, Any]:
    """Measures `blocked` with the two `sizes`: a tile size in positions and a step size in bytes."""
    tile, step_bytes = sizes
    mechanism = parse_mechanism(text)
    assert isinstance(mechanism, Softmax)
    # Operations are counted with the default tile, so that the TFLOP/s of all tile sizes are comparable.
    flops = 2.0 * multiply_adds(mechanism, length, HEADS, HEAD_WIDTH) * WITH_GRADIENTS
    tiled = dataclasses.replace(mechanism, tile=tile)
    gradients = with_gradients_of(lambda q, k, v: attend(q, k, v, tiled, backend='blocked'))
    before = device_tuning()
    with using_device_tuning(tile_step_bytes=step_bytes, shared_tile_step_bytes=step_bytes):
        figures = measure_program(gradients, random_arrays(length), settings, flops)
    is_default = (tile, step_bytes) == (mechanism.tile, before.tile_step_bytes)
    return figures | {'tile': tile, 'step_bytes': step_bytes, 'is_default': is_default}
