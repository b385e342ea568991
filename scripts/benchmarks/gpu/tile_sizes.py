"""Measures the time of the backends `blocked` and `mosaic`, forward with gradients, at several sizes of their tiles.

A tile is a block of query-key pairs. The loop of `blocked` computes several tiles in a step; the step size limits their
scores. A program of `mosaic` computes a tile of 128 positions, and copies tiles of 64 or 128 positions, several at
once. The script changes only these constants: `Softmax.tile`, and `tile_step_bytes`, `shared_tile_step_bytes`,
`mosaic_tile` and `mosaic_stages` of `efficient_attention/attention/devices.py`. The tiles of splash attention are not
measured, because splash attention runs only on TPUs.
"""

import dataclasses
import functools
from typing import Any

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import MIB, device_tuning, using_device_tuning
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.attention.softmax.definition import Softmax
from scripts.benchmarks.gpu.attention import HEAD_WIDTH, HEADS, WITH_GRADIENTS, random_arrays, with_gradients_of
from scripts.benchmarks.gpu.cases import Case, Settings, measure_program

LENGTH, DRY_LENGTH = 16_384, 64
PATTERNS = ('causal & window(512)', 'bigbird(64, 3)', 'sparse_strided(128)', 'causal')
TILES = (64, 128, 256)  # positions
STEPS = (128, 32, 512)  # MiB of float32 scores in a step; the first is the default on GPUs
MOSAIC = ((64, 2), (64, 3), (64, 4), (128, 2))  # visited positions, and tiles in shared memory; first the default


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case per pattern and tiles of `mosaic`, and one per pattern, step size and tile size of `blocked`."""
    length = DRY_LENGTH if settings.is_dry else LENGTH
    patterns, tiles, steps = (PATTERNS[-1:], (16,), (1,)) if settings.is_dry else (PATTERNS, TILES, STEPS)
    of_mosaic = [
        Case(
            f'{text} {length} forward+gradients',
            f'mosaic, tile {visited}, {stages} at once',
            functools.partial(measure_mosaic, text, length, (visited, stages), settings),
        )
        for visited, stages in MOSAIC
        for text in patterns
    ]
    return of_mosaic + [
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
    flops = count_flops(mechanism, length)
    tiled = dataclasses.replace(mechanism, tile=tile)
    gradients = with_gradients_of(lambda q, k, v: attend(q, k, v, tiled, backend='blocked'))
    before = device_tuning()
    with using_device_tuning(tile_step_bytes=step_bytes, shared_tile_step_bytes=step_bytes):
        figures = measure_program(gradients, random_arrays(length), settings, flops)
    is_default = (tile, step_bytes) == (mechanism.tile, before.tile_step_bytes)
    return figures | {'tile': tile, 'step_bytes': step_bytes, 'is_default': is_default}


def measure_mosaic(text: str, length: int, sizes: tuple[int, int], settings: Settings) -> dict[str, Any]:
    """Measures `mosaic` with the two `sizes`: positions of a visited tile, and visited tiles in shared memory."""
    mechanism, before = parse_mechanism(text), device_tuning()
    gradients = with_gradients_of(lambda q, k, v: attend(q, k, v, mechanism, backend='mosaic'))
    with using_device_tuning(mosaic_tile=sizes[0], mosaic_stages=sizes[1]):
        figures = measure_program(gradients, random_arrays(length), settings, count_flops(mechanism, length))
    is_default = sizes == (before.mosaic_tile, before.mosaic_stages)
    return figures | {'tile': sizes[0], 'stages': sizes[1], 'is_default': is_default}


def count_flops(mechanism: Mechanism, length: int) -> float:
    """Returns the operations of a call with gradients in tiles of the default size, so that the TFLOP/s of all tile
    sizes are comparable.
    """
    return 2.0 * multiply_adds(mechanism, length, HEADS, HEAD_WIDTH) * WITH_GRADIENTS
