"""Tokens a second that a decoder predicts, one at a time: one measurement in a process of its own.

`scripts/benchmark.py decode` starts it and gives the shape as one JSON object; it prints one JSON object. Each way of
predicting (`WAYS`) is a function from a decoder and the shape to a call that makes some tokens, and what it keeps.
"""

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.config.model import ModelConfig
from efficient_attention.inference.generate import STREAMED, proceed, start
from efficient_attention.inference.sampling import Draw, Sampling, sample
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.memory import Memory, empty_memory

SEGMENT = 80  # tokens of a segment in evaluation with memory, as in the released code for enwik8


class Work(NamedTuple):
    """A call that predicts `tokens` tokens and returns arrays to wait for; `state_bytes` stay between calls."""

    call: Callable[[], Any]
    tokens: int
    state_bytes: int


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Tokens/s of each call after the first, their median, and the bytes that are kept between calls.

    `shape` has `model` (fields of ModelConfig), `way`, `context` (positions that a prediction may read) and `calls`.
    """
    config = ModelConfig(**shape['model'])
    graph, params = nnx.split(jax.jit(lambda: Decoder(config, rngs=nnx.Rngs(0)))())
    work = WAYS[shape['way']](graph, nnx.to_pure_dict(params), shape)
    jax.block_until_ready(work.call())
    rates = []
    for _ in range(shape['calls']):
        begin = time.perf_counter()
        jax.block_until_ready(work.call())
        rates.append(work.tokens / (time.perf_counter() - begin))
    result = {'name': f'efficient_attention, jax {jax.__version__}', 'state_bytes': work.state_bytes}
    return result | {'tokens_per_second': statistics.median(rates), 'rates': rates}


def cached(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> Work:
    """Generation as `scripts/generate.py` does it: the context is read once, then `STREAMED` tokens a call."""
    max_length = shape['context'] + STREAMED * (shape['calls'] + 1)
    text = start(graph, params, random_tokens(shape, shape['context']), max_length=max_length)
    vocab_size = shape['model']['vocab_size']
    numbers = jnp.int32(STREAMED), Draw(jnp.int32(0), jnp.ones(vocab_size, bool))

    def call() -> Array:
        nonlocal text
        made_1n, text = proceed(graph, params, text, *numbers, sampling=Sampling(), max_length=max_length)
        return made_1n

    return Work(call, STREAMED, sum(leaf.nbytes for leaf in jax.tree.leaves(text.state)))


def recomputed(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> Work:
    """Generation without a cache: the last `context` tokens are read again for every token."""
    tokens_1L = random_tokens(shape, shape['context'])

    @jax.jit
    def next_token(params: Any, tokens_1L: Array, made: Array) -> Array:
        logits_1V = last_logits(nnx.merge(graph, params), tokens_1L)
        token_1 = sample(logits_1V, Sampling(), 0, made)
        return jnp.concatenate([tokens_1L[:, 1:], token_1[:, None]], axis=1)

    def call() -> Array:
        nonlocal tokens_1L
        tokens_1L = next_token(params, tokens_1L, jnp.int32(0))
        return tokens_1L

    return Work(call, 1, 0)


def sliding(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> Work:
    """Evaluation with a window of `context` tokens that moves on by 1: one whole pass for each token."""
    tokens_1L = random_tokens(shape, shape['context'])
    window = jax.jit(lambda params, tokens_1L: last_logits(nnx.merge(graph, params), tokens_1L))
    return Work(lambda: window(params, tokens_1L), 1, 0)


def with_memory(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> Work:
    """Evaluation in segments of `SEGMENT` tokens, each after a memory of `context` tokens, whose next it predicts."""
    tokens_1L = random_tokens(shape, SEGMENT)
    memory = empty_memory(dataclasses.replace(ModelConfig(**shape['model']), memory_length=shape['context']), 1)
    memory = Memory(memory.states_BNMD, jnp.ones_like(memory.segments_BM))

    @jax.jit
    def segment(params: Any, memory: Memory) -> tuple[Array, Memory]:
        decoder = nnx.merge(graph, params)
        hidden_BLD, memory = decoder.continued(tokens_1L, jnp.ones_like(tokens_1L), memory)
        return decoder.logits(hidden_BLD), memory

    def call() -> Array:
        nonlocal memory
        logits_1LV, memory = segment(params, memory)
        return logits_1LV

    return Work(call, SEGMENT, memory.states_BNMD.nbytes)


def last_logits(decoder: Decoder, tokens_BL: Array) -> Array:
    """float32 logits [B, V] of what follows the last token; those of earlier ones are never computed."""
    hidden_BLD = decoder.hidden(tokens_BL, jnp.ones_like(tokens_BL))
    return decoder.logits(hidden_BLD[:, -1:])[:, 0]


def random_tokens(shape: dict[str, Any], length: int) -> Array:
    """Ids int32 [1, length]."""
    return jnp.asarray(np.random.default_rng(0).integers(0, shape['model']['vocab_size'], (1, length), np.int32))


# A new way of predicting is a function like these, its name here and in a `Comparison` of scripts/benchmarks/decode.py.
WAYS: dict[str, Callable[[nnx.GraphDef, Any, dict[str, Any]], Work]] = {
    'cached': cached,
    'recomputed': recomputed,
    'sliding': sliding,
    'memory': with_memory,
}


if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    print(json.dumps(measure(json.loads(sys.argv[1]))))
