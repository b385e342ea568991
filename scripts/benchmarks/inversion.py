"""Measures how exactly reversible layers recover their inputs from their outputs.

    python scripts/benchmarks/inversion.py

The first table has the inverse error by depth: the largest difference between recovered and true input of the first
layer, divided by the largest input. The second table compares the gradients of all parameters and inputs with the
gradients of a stack that stores activations: the Euclidean norm of the difference over the norm of the gradient.
Weights are untrained with standard deviation 0.1; dropout is 0.1.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_integers, define_length
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.reversible import inverse_error, reversible_forward
from efficient_attention.modules.layer_context import Context

ROWS, WIDTH = 2, 64
ATTENTIONS: dict[str, dict[str, Any]] = {
    'causal': {'attention': 'causal'},
    'lsh': {'attention': 'lsh(8, 4, causal=True)', 'shared_qk': True},
}
# A reversible stack has two hidden states, called streams, and two kinds of sub-layers, f and g. In each pair, f and g
# compute in the first dtype, and the streams have the second dtype. In training, streams are always float32.
DTYPES = (('float32', 'float32'), ('bfloat16', 'float32'), ('float32', 'bfloat16'))


def main() -> None:
    """Reads the flags, and prints the tables of inverse errors and of gradient differences."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    lowest = min(*options.layers, options.gradient_layers, options.length)
    if lowest < 1 or options.length % 8:
        raise InputError('layers must be at least 1, and --length a multiple of 8')
    print_inversion_errors(options.layers, options.length)
    print_gradient_errors(options.gradient_layers, options.length)


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_integers('layers', (6, 12, 24, 48), 'Depths of the first table', options)
    flags.DEFINE_integer('gradient_layers', 12, 'Depth of the second table.', flag_values=options)
    define_length(64, 'Positions, a multiple of 8.', options)
    return options


def print_inversion_errors(depths: list[int], length: int) -> None:
    """Prints the table of inverse errors: a line per attention mechanism and pair of dtypes, a column per depth."""
    titles = ' '.join(f'{f"{layers} layers":>10}' for layers in depths)
    print(f'{"attention":<9} {"computed in":<11} {"streams":<8} {titles}')
    for attention in ATTENTIONS:
        for dtype, streams in DTYPES:
            errors = (inversion_error(stack_config(attention, layers, dtype), length, streams) for layers in depths)
            print(f'{attention:<9} {dtype:<11} {streams:<8} ' + ' '.join(f'{one:>10.1e}' for one in errors), flush=True)


def print_gradient_errors(layers: int, length: int) -> None:
    """Prints, per attention mechanism, how much inversion changes the gradients, and how much bfloat16 changes them."""
    print(f'relative distance of gradients at {layers} layers')
    print(f'{"attention":<9} {"bfloat16: reversible, stored":>29} {"stored: bfloat16, float32":>26} ', end='')
    print(f'{"float32: reversible, stored":>28}')
    for attention in ATTENTIONS:
        low, high = (stack_config(attention, layers, dtype) for dtype in ('bfloat16', 'float32'))
        low_stored, high_stored = (
            stack_gradients(low, length, apply_storing_activations),
            stack_gradients(high, length, apply_storing_activations),
        )
        of_low = relative_distance(stack_gradients(low, length, apply_reversible), low_stored)
        of_high = relative_distance(stack_gradients(high, length, apply_reversible), high_stored)
        print(
            f'{attention:<9} {of_low:>29.1e} {relative_distance(low_stored, high_stored):>26.1e} {of_high:>28.1e}',
            flush=True,
        )


def stack_config(attention: str, layers: int, dtype: str) -> ModelConfig:
    """Returns the config of a reversible model with the given attention, number of layers and dtype."""
    rates = {'dropout_rate': 0.1, 'attention_dropout_rate': 0.0}
    sizes = {'width': WIDTH, 'heads': 2, 'layers': layers, 'init_std': 0.1}
    return ModelConfig(**sizes, **rates, **ATTENTIONS[attention], norm='pre', stack='reversible', dtype=dtype)


def make_stack_inputs(config: ModelConfig, length: int) -> tuple[nnx.GraphDef, nnx.State, jax.Array, Context]:
    """Returns the graph and parameters of a stack of layers, a random input, and the context of its layers.

    The input [ROWS, length, WIDTH] is float32 and has no padding.
    """
    graph, state = nnx.split(jax.jit(lambda: Stack(config, rngs=nnx.Rngs(0)))())
    positions = jnp.tile(jnp.arange(length)[None], (ROWS, 1))
    keys = jax.random.split(jax.random.key(1), ROWS)
    context = Context(jnp.ones_like(positions), positions, keys, jax.random.key(2))
    return graph, state, jax.random.normal(jax.random.key(0), (ROWS, length, WIDTH)), context


def inversion_error(config: ModelConfig, length: int, streams: str) -> float:
    """Returns the inverse error of a reversible stack whose two hidden states (the streams) have the given dtype."""
    graph, state, x, context = make_stack_inputs(config, length)

    @jax.jit
    def measured(state: nnx.State, x: jax.Array) -> jax.Array:
        return inverse_error(*nnx.merge(graph, state).reversible_parts(context), x, dtype=streams)

    return float(measured(state, x))


def stack_gradients(config: ModelConfig, length: int, apply: Callable[[Stack, jax.Array, Context], jax.Array]) -> list:
    """Returns the gradients of a weighted sum of a stack's outputs, for all parameters and the input."""
    graph, state, x, context = make_stack_inputs(config, length)
    weights = jax.random.normal(jax.random.key(3), x.shape)

    @jax.jit
    def measured(state: nnx.State, x: jax.Array) -> Any:
        return jax.grad(lambda state, x: (apply(nnx.merge(graph, state), x, context) * weights).sum(), (0, 1))(state, x)

    return jax.tree.leaves(measured(state, x))


def apply_reversible(stack: Stack, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output of a reversible stack, computed as in training, without storing activations."""
    return stack(x, context)


def apply_storing_activations(stack: Stack, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output of a reversible stack, computed so that JAX stores all activations for the gradient."""
    first, second = reversible_forward(*stack.reversible_parts(context), (x, x))
    return (first + second) / 2


def relative_distance(left: list, right: list) -> float:
    """Returns the relative difference of two lists of arrays, |left - right| / |right|.

    The Euclidean norms are taken over all arrays together.
    """
    square = sum(float(jnp.square(a - b).sum()) for a, b in zip(left, right, strict=True))
    return (square / sum(float(jnp.square(b).sum()) for b in right)) ** 0.5


if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    run_command(main)
