"""The models of Long Range Arena by task; Tay et al. 2020, arXiv 2011.04006, and its released settings."""

from typing import Any

# Layers, width, heads, width of all heads, of the feed-forward layer, dropout: what the released settings (`code`,
# google-research/long-range-arena cd31e5c) and the paper say.
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
# Likewise of single mechanisms in the released settings. BigBird's say `num_head`, a misspelt 4; `lra_local` is what
# they mean by local.
OF_MECHANISMS: dict[tuple[str, str], tuple[float, ...]] = {
    ('image', 'bigbird'): (1, 128, 4, 64, 128, 0.3),
    ('image', 'lra_local'): (1, 128, 2, 64, 128, 0.3),
    ('image', 'longformer'): (4, 128, 4, 64, 128, 0.3),
    ('image', 'lsh'): (4, 64, 8, 32, 64, 0.3),
    ('image', 'sinkhorn'): (1, 32, 1, 32, 64, 0.1),
    ('pathfinder_hard', 'bigbird'): (4, 64, 2, 32, 64, 0.2),
    ('pathfinder_hard', 'linear'): (1, 128, 2, 64, 128, 0.2),
    ('pathfinder_hard', 'linformer'): (1, 32, 2, 16, 32, 0.2),
    ('pathfinder_hard', 'lra_local'): (2, 64, 4, 32, 64, 0.1),
    ('pathfinder_hard', 'longformer'): (2, 32, 2, 16, 32, 0.1),
    ('pathfinder_hard', 'favor'): (4, 32, 8, 16, 32, 0.2),
    ('pathfinder_hard', 'lsh'): (2, 64, 8, 32, 64, 0.2),
    ('pathfinder_hard', 'sinkhorn'): (2, 32, 4, 16, 64, 0.2),
    ('pathfinder_hard', 'sparse'): (1, 32, 8, 16, 32, 0.2),
    ('pathfinder_hard', 'synthesizer'): (2, 64, 4, 32, 64, 0.2),
}


def arena_fields(size: str, task: str, mechanism: str) -> dict[str, Any]:
    """The fields of `model` that give it an original size; in `code` of some mechanisms the sizes are their own."""
    whole = ARENA_SIZES[size][task]
    if size == 'code':
        whole = OF_MECHANISMS.get((task, mechanism), whole)
    layers, width, heads, inner, feed_forward, dropout = whole
    return {
        'layers': int(layers),
        'width': int(width),
        'heads': int(heads),
        'head_width': int(inner // heads),
        'feed_forward_width': int(feed_forward),
        'dropout_rate': dropout,
        'attention_bias': False,
    }
