"""Tests one pass over tiles: which form it takes, and that heads in turn give the same as all heads at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.devices import using_device_tuning, using_platform
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.softmax.tile_bias import ArrayBias
from efficient_attention.attention.softmax.tile_pass import (
    attend_pass,
    dropout_seeds,
    make_logit_terms,
    step_byte_sizes,
)
from efficient_attention.attention.softmax.tile_relative import RelativeBias
from efficient_attention.attention.softmax.tile_schedule import TilePass, schedule_tiles
from tests.attention.requests import make_request
from tests.tolerances import assert_close

L, H, G, K, S = 20, 4, 2, 8, 8
POSITIONS = np.arange(L, dtype=np.int32).tobytes()
HEADS = np.arange(H)


def make(**options: object) -> Request:
    rng = np.random.default_rng(0)
    shapes = (2, L, H, K), (2, L, G, K), (2, L, G, K), (2 * L, H, K)
    q, k, v, table = (jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes)
    options |= {'relative': Relative(2 * q, table)} if options.pop('is_relative', False) else {}
    return make_request(q, k, v, Softmax(Causal(), S), **options)


def causal_pass() -> TilePass:
    (tile_pass,) = schedule_tiles((Causal(),), POSITIONS, POSITIONS, S)
    return tile_pass


def test_heads_in_turn_give_what_all_heads_at_once_give():
    """All inputs that are cut by key head are present: bias, relative term and dropout seeds."""
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(1, H, L, L)).astype(np.float32))
    request = make(is_relative=True, bias=bias, dropout_rate=0.3, rng=jax.random.key(2))
    programs, results = [], []
    for is_in_turn in (False, True):
        with using_device_tuning(tile_step_bytes=1, takes_turns_by_head=is_in_turn):
            lowered = jax.jit(lambda: attend_pass(request, HEADS, causal_pass())).lower()
            programs.append(lowered.as_text())
            results.append(lowered.compile()())
    assert programs[0] != programs[1]
    assert_close(*results)


def test_terms_are_those_that_the_request_has():
    bias = jnp.zeros((L, L))
    for options, kinds in (
        ({}, []),
        ({'bias': bias}, [ArrayBias]),
        ({'bias': bias, 'is_relative': True}, [ArrayBias, RelativeBias]),
    ):
        assert [type(term) for term in make_logit_terms(make(**options), HEADS, causal_pass())] == kinds


@pytest.mark.parametrize(
    'platform, sizes', [('cpu', (2**20, 2**22)), ('cuda', (2**27, 2**27)), ('tpu', (2**27, 2**27))]
)
def test_steps_are_small_on_cpus_alone(platform: str, sizes: tuple[int, int]):
    with using_platform(platform):
        assert step_byte_sizes() == sizes


def test_dropout_begins_at_the_hash_of_row_and_head():
    """The seeds of chosen heads equal the seeds of these heads when all are computed."""
    rng = jax.random.key(3)
    both = jax.jit(lambda: [dropout_seeds(make(), rng, heads) for heads in (HEADS, HEADS[::-1])])
    whole, reversed_heads = map(np.asarray, both())
    assert whole.shape == (2, G, H // G) and len(np.unique(whole)) == 2 * H
    np.testing.assert_array_equal(reversed_heads.reshape(2, H), whole.reshape(2, H)[:, ::-1])
