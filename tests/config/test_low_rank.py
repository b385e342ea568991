"""Ranks of kernels by their kind."""

from typing import Any

import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.nested_dicts import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError

SIZES: dict[str, Any] = {'width': 8, 'heads': 2, 'feed_forward_width': 32, 'vocab_size': 50}


@pytest.mark.parametrize(
    'fields, message',
    [
        (
            {'ranks': ('up',)},
            "model.ranks has 'up'; entries are as 'up=96', of query, key, value, out, gate, up, down, token",
        ),
        ({'ranks': ('head=3',)}, "model.ranks has 'head=3'; entries are as"),
        ({'ranks': ('up=9',)}, r"model.ranks is \('up=9',\); it must be at most 8 of up, its smaller side"),
        ({'ranks': ('gate=2',)}, "it must be no 'gate', which the layers lack"),
        ({'ranks': ('down=2',), 'feed_forward': False}, "it must be no 'down', which the layers lack"),
        ({'ranks': ('up=2', 'up=3')}, 'it must be one entry of a kind'),
        ({'ranks': ('up=2',), 'global_tokens': 1}, 'model.global_tokens is 1; it must be 0 with model.ranks'),
    ],
)
def test_what_does_not_serve_is_one_line(fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        ModelConfig(**SIZES | fields)


def test_a_matrix_whose_factors_save_nothing_stays_whole():
    model = ModelConfig(**SIZES, ranks=('up=6', 'query=4', 'token=3'))
    assert model.rank_of('up', 8, 32) == 6 and model.rank_of('up', 8, 12) == 0
    assert model.rank_of('query', 8, 8) == 0 and model.rank_of('token', 50, 8) == 3 and model.rank_of('key', 8, 8) == 0


def test_factors_are_not_pruned():
    values = {'model': SIZES | {'ranks': ['up=6']}, 'prune': {'method': 'magnitude'}}
    with pytest.raises(InputError, match="model.ranks is .*; it must be empty with prune.method 'magnitude'"):
        from_dict(values, RunConfig)
