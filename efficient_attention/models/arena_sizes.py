"""Defines model sizes for each task of Long Range Arena: sizes from the paper (Tay et al. 2020, arXiv 2011.04006) and
sizes from its released settings.
"""

from typing import Any

# Each tuple holds layers, width, heads, width of all heads together, feed-forward width and dropout rate.
# 'code' holds the released settings (google-research/long-range-arena cd31e5c); 'paper' holds the sizes in the paper.
ARENA_SIZES: dict[str, dict[str, tuple[float, ...]]] = {
    'code': {
        'listops': (4, 512, 8, 512, 1024, 0.1),
        'text': (4, 256, 4, 256, 1024, 0.1),
        'retrieval': (4, 128, 4, 128, 512, 0.1),
        'image': (1, 128, 8, 64, 128, 0.3),
        'pathfinder_hard': (4, 32, 4, 16, 32, 0.2),
        'pathx': (1, 32, 2, 16, 32, 0.1),
    },
    'paper': {
        'listops': (6, 512, 8, 512, 2048, 0.1),
        'text': (6, 512, 8, 512, 2048, 0.1),
        'retrieval': (4, 128, 4, 128, 512, 0.1),
        'image': (3, 64, 4, 64, 128, 0.3),
        'pathfinder_hard': (4, 128, 8, 128, 128, 0.2),
        'pathx': (4, 128, 8, 128, 128, 0.2),
    },
}


def arena_fields(sizes: tuple[float, ...]) -> dict[str, Any]:
    """Returns the config fields (group `model`) for one tuple of sizes from `ARENA_SIZES`."""
    layers, width, heads, inner, feed_forward, dropout = sizes
    return {
        'layers': int(layers),
        'width': int(width),
        'heads': int(heads),
        'head_width': int(inner // heads),
        'feed_forward_width': int(feed_forward),
        'dropout_rate': dropout,
        'attention_bias': False,
    }
