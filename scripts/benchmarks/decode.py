"""Measures tokens/s of predicting token by token, with and without cached state (`scripts/benchmark.py decode`).

A comparison has two ways to predict the same tokens from the same context. The fast way keeps state between tokens, and
the slow way reads the context again for every token. The comparisons are generation with a cache, and evaluation with
segment memory. Each (mechanism, context, way) runs in a separate process. Each way in `WAYS` is a function that takes a
decoder and the shape. It returns a call that predicts some tokens, and the size of the kept state.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers
from efficient_attention.errors import InputError

if TYPE_CHECKING:  # at run time, only the child process imports these modules
    from flax import nnx
    from jax import Array

    from efficient_attention.models.decoder import Decoder
    from efficient_attention.models.segment_memory import SegmentMemory

MEBIBYTE = 2**20
# This is the model of configs/lm/enwik8_small.py, without dropout.
MODEL = {
    'layers': 4,
    'width': 128,
    'heads': 4,
    'vocab_size': 256,
    'norm': 'pre',
    'positions': 'none',
    'rotary': True,
    'dropout_rate': 0.0,
    'attention_dropout_rate': 0.0,
}


@dataclasses.dataclass(frozen=True)
class DecodingComparison:
    """A comparison of a fast and a slow way to predict tokens, for several mechanisms and context lengths.

    `fast` and `slow` are names in `WAYS`. `sides` maps the name of a mechanism to fields of ModelConfig.
    """

    fast: str
    slow: str
    sides: dict[str, dict[str, Any]]
    contexts: tuple[int, ...]  # context lengths: numbers of positions that a prediction may read


CACHE = DecodingComparison(
    fast='cached',
    slow='recomputed',
    sides={
        'causal': {'attention': 'causal'},
        'window': {'attention': 'causal & window(64)'},
        'fixed': {'attention': 'sparse_fixed(64, 8)'},
        'strided': {'attention': 'sparse_strided(64)'},
        'favor': {'attention': 'favor(128, causal=True)'},
    },
    contexts=(512, 4096),
)
# Dai et al. 2019 (arXiv 1901.02860, section 4.5) measured these context lengths in a model of 24 layers on a GPU.
# In the measurements of Dai et al., evaluation without memory is 363 to 1,874 times slower than with memory.
MEMORY = DecodingComparison(
    fast='memory',
    slow='sliding',
    sides={'transformer_xl': {'attention': 'causal', 'relative': 'transformer_xl', 'rotary': False}},
    contexts=(800, 1800, 2800, 3800),
)
COMPARISONS = {'cache': CACHE, 'memory': MEMORY}

Figures = dict[str, dict[int, dict[str, Any]]]  # {mechanism: {context length: tokens/s, as `compare` returns}}
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]  # starts a child process and returns its measurements
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    sides = list(dict.fromkeys(side for comparison in COMPARISONS.values() for side in comparison.sides))
    define_choices('parts', list(COMPARISONS), 'Comparisons', options)
    define_choices('sides', sides, 'Mechanisms', options)
    define_integers('contexts', None, 'Positions before a token; by default as set for each part', options)
    flags.DEFINE_integer('rounds', 1, 'Processes per row.', flag_values=options)
    flags.DEFINE_integer('calls', 10, 'Timed calls per process.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if numeric flags are below 1, or if the chosen flags leave no mechanism to measure."""
    for name in ('contexts', 'rounds', 'calls'):
        given = options[name].value
        least = min(given) if isinstance(given, list) else given
        if least is not None and least < 1:
            raise InputError(f'--{name} {least}: it must be at least 1')
    for part in options.parts:
        if not set(options.sides) & set(COMPARISONS[part].sides):
            raise InputError(f'--parts {part} has none of --sides {",".join(options.sides)}; name the parts you want')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each context length of each comparison."""
    report: dict[str, Any] = {'model': MODEL}
    for part in options.parts:
        comparison = COMPARISONS[part]
        figures: Figures = {side: {} for side in options.sides if side in comparison.sides}
        report[part] = {'fast': comparison.fast, 'slow': comparison.slow, 'sides': figures}
        print_decoding_header(comparison)
        for context in sorted(options.contexts or comparison.contexts):
            for side in figures:
                model = MODEL | comparison.sides[side]
                shape = {'model': model, 'context': context, 'calls': options.calls}
                figures[side][context] = compare(comparison, shape, options.rounds, lambda shape: run(CHILD, shape))
                print_row(context, side, figures[side][context])
            yield report


def compare(
    comparison: DecodingComparison, shape: dict[str, Any], rounds: int, run: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Measures a fast and a slow way to predict tokens in turns; returns the tokens/s of each way and their ratio, with
    medians and ranges.
    """
    children: dict[str, list[dict[str, Any]]] = {comparison.fast: [], comparison.slow: []}
    for number in range(rounds):
        for way in list(children)[:: -1 if number % 2 else 1]:
            children[way].append(run(shape | {'way': way}))
    rates = {way: [child['tokens_per_second'] for child in runs] for way, runs in children.items()}
    by_round = [fast / slow for fast, slow in zip(rates[comparison.fast], rates[comparison.slow], strict=True)]
    return {
        'tokens_per_second': {way: statistics.median(values) for way, values in rates.items()},
        'range': {way: [min(values), max(values)] for way, values in rates.items()},
        'state_bytes': children[comparison.fast][0]['state_bytes'],
        'ratio': statistics.median(by_round),
        'ratio_range': [min(by_round), max(by_round)],
    }


def print_decoding_header(comparison: DecodingComparison) -> None:
    """Prints the column titles of a comparison's table."""
    ways = f'{comparison.fast + " tokens/s":>22} {comparison.slow + " tokens/s":>22}'
    print(f'{"context":>7} {"side":<10} {ways} {"ratio":>8} {"(range)":>18} {"state MiB":>10}')


def print_row(context: int, side: str, row: dict[str, Any]) -> None:
    """Prints the line of the table with the tokens/s of one mechanism at one context length."""
    ways = ' '.join(f'{rate:>22,.1f}' for rate in row['tokens_per_second'].values())
    between = '{:.1f} to {:.1f}'.format(*row['ratio_range'])
    state = row['state_bytes'] / MEBIBYTE
    print(f'{context:>7} {side:<10} {ways} {row["ratio"]:>8.1f} {between:>18} {state:>10.2f}', flush=True)


# ---- The functions below take one measurement, in a separate process. ----


SEGMENT = 80  # tokens per segment in evaluation with memory, as in Transformer-XL's released code for enwik8


class DecodingCall(NamedTuple):
    """A function that predicts tokens, with the number of tokens per call, and the bytes of state kept between calls.

    `call` returns arrays; the prediction is complete when they are ready.
    """

    call: Callable[[], Any]
    tokens: int
    state_bytes: int


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures one way to predict tokens: tokens/s of each call after the first, and bytes kept between calls.

    `shape` has `model` (fields of ModelConfig), `way`, `context` (positions that a prediction may read) and `calls`.
    """
    import jax
    from flax import nnx

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.models.decoder import Decoder

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


def decode_with_cache(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> DecodingCall:
    """Returns a function that generates tokens with a cache, as `scripts/generate.py` does.

    The context is read once, before the first call. Each call then adds `STREAMED` tokens.
    """
    import jax
    import jax.numpy as jnp

    from efficient_attention.inference.generate import STREAMED, generate_tokens_jitted, read_prompt_jitted
    from efficient_attention.inference.sampling import Sampling, SamplingInputs

    max_length = shape['context'] + STREAMED * (shape['calls'] + 1)
    text = read_prompt_jitted(graph, params, random_tokens(shape, shape['context']), max_length=max_length)
    vocab_size = shape['model']['vocab_size']
    numbers = jnp.int32(STREAMED), SamplingInputs(jnp.int32(0), jnp.ones(vocab_size, bool))

    def call() -> Array:
        nonlocal text
        made_1n, text = generate_tokens_jitted(
            graph, params, text, *numbers, sampling=Sampling(), max_length=max_length
        )
        return made_1n

    return DecodingCall(call, STREAMED, sum(leaf.nbytes for leaf in jax.tree.leaves(text.state)))


def decode_without_cache(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> DecodingCall:
    """Returns a function that generates one token without a cache: it reads the whole context again for every token."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.inference.sampling import Sampling, sample

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

    return DecodingCall(call, 1, 0)


def evaluate_sliding_window(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> DecodingCall:
    """Returns a function that evaluates one token with a sliding window: a forward pass over the context per token."""
    import jax
    from flax import nnx

    tokens_1L = random_tokens(shape, shape['context'])
    window = jax.jit(lambda params, tokens_1L: last_logits(nnx.merge(graph, params), tokens_1L))
    return DecodingCall(lambda: window(params, tokens_1L), 1, 0)


def evaluate_with_memory(graph: nnx.GraphDef, params: Any, shape: dict[str, Any]) -> DecodingCall:
    """Returns a function that evaluates a segment of `SEGMENT` tokens with segment memory of the tokens before it."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.models.segment_memory import SegmentMemory, empty_memory

    tokens_1L = random_tokens(shape, SEGMENT)
    memory = empty_memory(dataclasses.replace(ModelConfig(**shape['model']), memory_length=shape['context']), 1)
    memory = SegmentMemory(memory.states_BNMD, jnp.ones_like(memory.segments_BM))

    @jax.jit
    def segment(params: Any, memory: SegmentMemory) -> tuple[Array, SegmentMemory]:
        decoder = nnx.merge(graph, params)
        hidden_BLD, memory = decoder.continue_from_memory(tokens_1L, jnp.ones_like(tokens_1L), memory)
        return decoder.logits(hidden_BLD), memory

    def call() -> Array:
        nonlocal memory
        logits_1LV, memory = segment(params, memory)
        return logits_1LV

    return DecodingCall(call, SEGMENT, memory.states_BNMD.nbytes)


def last_logits(decoder: Decoder, tokens_BL: Array) -> Array:
    """Returns the logits of the next token, float32 [B, V], without computing logits of earlier positions."""
    import jax.numpy as jnp

    hidden_BLD = decoder.hidden(tokens_BL, jnp.ones_like(tokens_BL))
    return decoder.logits(hidden_BLD[:, -1:])[:, 0]


def random_tokens(shape: dict[str, Any], length: int) -> Array:
    """Returns one row of random token ids, int32 [1, length]."""
    import jax.numpy as jnp

    return jnp.asarray(np.random.default_rng(0).integers(0, shape['model']['vocab_size'], (1, length), np.int32))


# To add a way to predict tokens, add a function that returns a `DecodingCall`, and name it in a `DecodingComparison`.
WAYS: dict[str, Callable[[nnx.GraphDef, Any, dict[str, Any]], DecodingCall]] = {
    'cached': decode_with_cache,
    'recomputed': decode_without_cache,
    'sliding': evaluate_sliding_window,
    'memory': evaluate_with_memory,
}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
