"""Tests model sizes of Long Range Arena: only in the released code do some mechanisms replace the sizes of
their task.
"""

import pytest

from configs.arena import OF_MECHANISMS, OWN_SIZES, RECIPES, get_config, mechanisms
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.arena_sizes import ARENA_SIZES, arena_fields


@pytest.mark.parametrize(
    'cell, expected',
    [
        ('listops,full,paper', (6, 512, 8, 64, 2048, 0.1)),
        ('listops,full,code', (4, 512, 8, 64, 1024, 0.1)),
        ('image,full,code', (1, 128, 8, 8, 128, 0.3)),
        ('image,lsh,code', (4, 64, 8, 4, 64, 0.3)),
        ('image,lsh,paper', (3, 64, 4, 16, 128, 0.3)),
        ('pathfinder_hard,synthesizer_dot,code', (2, 64, 4, 8, 64, 0.2)),
    ],
)
def test_sizes_of_a_cell(cell: str, expected: tuple[float, ...]):
    model = get_config(cell).model
    names = ('layers', 'width', 'heads', 'head_width', 'feed_forward_width', 'dropout_rate')
    assert tuple(model[name] for name in names) == expected and not model.attention_bias


def test_every_size_is_of_a_model_with_a_recipe():
    assert {size: set(tasks) for size, tasks in RECIPES.items()} == {
        size: set(tasks) for size, tasks in ARENA_SIZES.items()
    }
    assert set(OWN_SIZES) == {'code'}
    for (task, mechanism), sizes in OF_MECHANISMS.items():
        assert task in ARENA_SIZES['code'] and mechanism in {*mechanisms(1), 'synthesizer'}
        ModelConfig(vocab_size=20, max_length=64, **arena_fields(sizes))
