"""Sizes of Long Range Arena's models: a mechanism's own come before its task's, in the released ones alone."""

import pytest

from configs.arena import OWN_SIZES, RECIPES, mechanisms
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.arena_sizes import ARENA_SIZES, OF_MECHANISMS, arena_fields


@pytest.mark.parametrize(
    'size, task, mechanism, expected',
    [
        ('paper', 'listops', 'full', (6, 512, 8, 64, 2048, 0.1)),
        ('code', 'listops', 'full', (4, 512, 8, 64, 1024, 0.1)),
        ('code', 'image', 'full', (1, 128, 8, 8, 128, 0.3)),
        ('code', 'image', 'lsh', (4, 64, 8, 4, 64, 0.3)),
        ('paper', 'image', 'lsh', (3, 64, 4, 16, 128, 0.3)),
    ],
)
def test_fields(size: str, task: str, mechanism: str, expected: tuple[float, ...]):
    fields = arena_fields(size, task, mechanism)
    names = ('layers', 'width', 'heads', 'head_width', 'feed_forward_width', 'dropout_rate')
    assert tuple(fields[name] for name in names) == expected and not fields['attention_bias']


def test_every_size_is_of_a_model_with_a_recipe():
    assert {size: set(tasks) for size, tasks in RECIPES.items()} == {
        size: set(tasks) for size, tasks in ARENA_SIZES.items()
    }
    assert set(OWN_SIZES) == {'code'}
    for task, mechanism in OF_MECHANISMS:
        assert mechanism in {*mechanisms(1), 'synthesizer'}
        ModelConfig(vocab_size=20, max_length=64, **arena_fields('code', task, mechanism))
