"""Measures how fast a decoder of the size of GPT-2 124M generates single tokens with a cache.

The decoder first reads a context of random tokens: 1,024 or 16,384 in each row (`CONTEXTS`). A call then generates
`TOKENS` tokens in each row, always the most probable token. All calls start from the same decoding state, so all
measurements have the same context.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.cached_decoding import CachedDecoder, DecodeState, read_prompt
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.decoder_sizes import gpt2_fields
from scripts.benchmarks.gpu.cases import (
    Case,
    Settings,
    compile_program,
    peak_bytes,
    peak_since,
    time_calls,
    tokens_per_second,
)

FIELDS = gpt2_fields('small') | {'dtype': 'bfloat16'}
TINY = {'layers': 1, 'width': 16, 'heads': 2, 'vocab_size': 64}
CONTEXTS, DRY_CONTEXTS = (1024, 16_384), (32,)  # tokens
ROWS = (1, 16)
MECHANISMS = ('causal', 'causal & window(512)')
TOKENS = 16  # tokens per row that a call generates


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case per context length, number of rows and mechanism."""
    contexts, rows = (DRY_CONTEXTS, ROWS[:1]) if settings.is_dry else (CONTEXTS, ROWS)
    mechanisms = MECHANISMS[:1] if settings.is_dry else MECHANISMS
    return [
        Case(
            f'context {context}, {count} rows',
            text,
            functools.partial(measure_decoding, text, context, count, settings),
        )
        for context in contexts
        for count in rows
        for text in mechanisms
    ]


def measure_decoding(text: str, context: int, rows: int, settings: Settings) -> dict[str, Any]:
    """Returns time, memory and tokens/s of a call, counted over all rows.

    `cache_bytes` is the size of the decoding state.
    """
    longest = context + TOKENS
    config = ModelConfig(**FIELDS | (TINY if settings.is_dry else {}) | {'attention': text, 'max_length': longest})
    graph, params = nnx.split(jax.jit(lambda: Decoder(config, rngs=nnx.Rngs(0)))())
    params = nnx.to_pure_dict(params)
    tokens_BL = jax.random.randint(jax.random.key(0), (rows, context), 0, config.vocab_size, jnp.int32)

    @jax.jit
    def read(params: Any, tokens_BL: Array) -> DecodeState:
        cached = CachedDecoder(nnx.merge(graph, params), longest)
        return read_prompt(cached, cached.init_state(rows), tokens_BL, jnp.ones_like(tokens_BL))

    def generate(params: Any, state: DecodeState, newest_B: Array) -> Array:
        cached = CachedDecoder(nnx.merge(graph, params), longest)

        def add_token(carry: tuple[DecodeState, Array], _: None) -> tuple[tuple[DecodeState, Array], Array]:
            logits_B1V, state = cached(carry[0], carry[1][:, None])
            token_B = logits_B1V[:, 0].argmax(-1).astype(jnp.int32)
            return (state, token_B), token_B

        return jax.lax.scan(add_token, (state, newest_B), None, length=TOKENS)[1]

    state = jax.block_until_ready(read(params, tokens_BL))
    arguments = (params, state, tokens_BL[:, -1])
    program, figures = compile_program(generate, arguments)
    before = peak_bytes()
    figures |= time_calls(lambda: program(*arguments), jax.block_until_ready, settings) | peak_since(before)
    figures['cache_bytes'] = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return figures | tokens_per_second(figures, rows * TOKENS)
