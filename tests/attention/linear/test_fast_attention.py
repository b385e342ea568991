"""Tests what linear attention refuses, that a model trains with it, and that generation equals reading all tokens each
time.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import attend
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from tests.attention.cells import check, quick
from tests.models.drawn import drawn

CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=11, layers=1, max_length=24, token_types=0, attention='linear(causal=True, chunk=4)',
    norm='pre', positions='none', rotary=True, attention_dropout_rate=0.0, dropout_rate=0.0, init_std=0.3,
)  # fmt: skip


@pytest.mark.parametrize(
    'mechanism, change, line',
    [
        (Linear(), {'bias': jnp.zeros((1, 1, 5, 5))}, 'linear has no additive bias'),
        (Linear(), {'dropout_rate': 0.1, 'rng': jax.random.key(0)}, 'linear has no dropout on weights'),
        (Linear(), {'return_lse': True}, 'linear has no log-sum-exp'),
        (
            Linear(causal=True),
            {'query_positions': np.arange(1, 6)[None]},
            'linear has no causal form for other positions',
        ),
        (Linear('cos', 4), {}, 'linear has no support for 5 positions, only for up to 4'),
    ],
)
def test_what_it_lacks_is_refused(mechanism: Linear, change: dict, line: str):
    q = jnp.ones((1, 5, 2, 4))
    with pytest.raises(NotImplementedError, match=line):
        attend(q, q, q, mechanism, backend='blocked', **change)
    with pytest.raises(ValueError, match=f'no attention backend supports .*: {line}'):
        attend(q, q, q, mechanism, **change)


def test_unequal_lengths_and_grouped_heads_equal_the_reference():
    check('blocked', 'linear', 'cross grouped', 20)


def test_a_model_trains_and_generates_what_it_would_say_after_all_tokens():
    graph, params = drawn(lambda: Decoder(CONFIG, rngs=nnx.Rngs(0)))
    tokens = (np.arange(12)[None].repeat(2, 0) % 3 + np.array([[1], [4]])).astype(np.int32)
    ones = np.ones_like(tokens)

    def loss(params: dict) -> jax.Array:
        logits = nnx.merge(graph, params)(jnp.asarray(tokens), jnp.asarray(ones))[:, :-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=2).mean()

    @quick
    def step(params: dict) -> tuple[dict, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda x, dx: x - 0.3 * dx, params, gradient), value

    losses = []
    for _ in range(8):
        params, value = step(params)
        losses.append(float(value))
    assert losses[-1] < 0.6 * losses[0]

    @quick
    def generate(params: dict, prompt: jax.Array) -> jax.Array:
        cached = CachedDecoder(nnx.merge(graph, params), 24)
        logits, state = cached(cached.init_state(2), prompt)

        def run_with_cache(carry: tuple, _: None) -> tuple:
            state, token = carry
            logits, state = cached(state, token[:, None])
            return (state, logits[:, 0].argmax(axis=-1).astype(jnp.int32)), token

        return jax.lax.scan(run_with_cache, (state, logits[:, -1].argmax(axis=-1).astype(jnp.int32)), length=5)[
            1
        ].swapaxes(0, 1)

    generated = generate(params, tokens[:, :6])
    row = np.concatenate([tokens[:, :6], generated], axis=1)
    logits = quick(lambda params, row: nnx.merge(graph, params)(row, jnp.ones_like(row)))(params, row)
    np.testing.assert_array_equal(generated, np.asarray(logits)[:, 5:-1].argmax(axis=-1))
