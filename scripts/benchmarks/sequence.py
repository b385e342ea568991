"""Measures the memory per device of sequence-parallel attention, where each device holds a part of the tokens.

    python scripts/benchmarks/sequence.py

Compiles output and gradients of one attention call, with one row in float32, for 1, 2, 4 and 8 emulated devices. Prints
the compiler's memory per device: arguments, results and temporary memory. With --memory, the row also attends to this
many tokens before it, with Transformer-XL's distance vectors. Nothing is run.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_integers, define_length
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import make_mesh
from efficient_attention.planning.topology import emulated_devices

HEADS, WIDTH = 2, 16
EMULATED = 8  # number of emulated devices
ATTENTION = 'causal & window(512); causal; linear; favor(64); favor(64, causal=True)'


@dataclasses.dataclass(frozen=True)
class AttentionLengths:
    """One call of `attend` to measure: its mechanism, its number of tokens, and its number of memory tokens."""

    mechanism: Mechanism
    length: int
    memory: int


def main() -> None:
    """Reads the flags, and prints the memory of each mechanism, one line per number of devices."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    sizes = options.length, options.memory
    if not all(1 <= count <= EMULATED and not any(size % count for size in sizes) for count in options.devices):
        raise InputError(
            f'--devices are {options.devices}; they must be 1 to {EMULATED} and divide --length {options.length} and '
            f'--memory {options.memory}'
        )
    texts = [text.strip() for text in options.attention.split(';')]
    calls = [AttentionLengths(parse_sequence_parallel_mechanism(text, options.memory), *sizes) for text in texts]
    there_are = emulated_devices(EMULATED)
    before = f' after {options.memory:,} of memory' if options.memory else ''
    for text, call in zip(texts, calls, strict=True):
        print(f'{text}, {options.length:,} tokens{before}, {HEADS} heads of {WIDTH}, float32, MiB a device')
        print(f'{"devices":>7} {"arguments":>9} {"results":>8} {"temporary":>9}')
        for devices in options.devices:
            found = compiled_memory_sizes(call, there_are[:devices])
            print(f'{devices:>7} {found[0]:>9.1f} {found[1]:>8.1f} {found[2]:>9.1f}', flush=True)


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    flags.DEFINE_string(
        'attention', ATTENTION, 'Text forms of mechanisms, separated by semicolons.', flag_values=options
    )
    define_integers('devices', (1, 2, 4, 8), 'Numbers of devices', options)
    define_length(65_536, 'Tokens of the row.', options)
    flags.DEFINE_integer(
        'memory', 0, 'Earlier tokens that the row also attends to; also the largest distance.', 0, flag_values=options
    )
    return options


def parse_sequence_parallel_mechanism(text: str, memory: int) -> Mechanism:
    """Parses a mechanism; raises InputError if it does not support sequence parallelism or the requested memory."""
    mechanism = parse_mechanism(text)
    if not mechanism.capabilities.splits_tokens:
        raise InputError(f'--attention has {text!r}, which needs whole rows')
    if memory and not mechanism.capabilities.has_logits:
        raise InputError(f'--attention has {text!r}, which has no memory; use a pattern with --memory')
    return mechanism


def compiled_memory_sizes(call: AttentionLengths, devices: list[jax.Device]) -> tuple[float, float, float]:
    """Returns the compiler's MiB per device for arguments, results and temporary memory of one attention call."""
    mesh = make_mesh(MeshConfig(data=1, sequence=len(devices)), devices)
    tokens = NamedSharding(mesh, PartitionSpec(None, 'sequence' if len(devices) > 1 else None))
    query, key = (
        jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), 'float32', sharding=tokens)
        for length in (call.length, call.memory + call.length)
    )
    inputs = (query, key, key, *relative_position_terms(call, query, mesh))

    def both(inputs: tuple, dout: jax.Array, key: jax.Array) -> tuple:
        out, pull = jax.vjp(functools.partial(compute_attention_of_call, call, key), *inputs)
        return out, pull(dout)

    drawn = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    memory = jax.jit(using_mesh(mesh)(both)).lower(inputs, query, drawn).compile().memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return tuple(size / 2**20 for size in sizes)  # type: ignore[return-value]


def relative_position_terms(
    call: AttentionLengths, query: jax.ShapeDtypeStruct, mesh: Mesh
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Returns the shapes of Transformer-XL's relative position inputs: queries, and one vector per distance.

    The vectors are for distances from 0 to the memory length. Without memory, returns ().
    """
    if not call.memory:
        return ()
    shape = call.memory + 1, HEADS, WIDTH
    return query, jax.ShapeDtypeStruct(shape, 'float32', sharding=NamedSharding(mesh, PartitionSpec()))


def compute_attention_of_call(call: AttentionLengths, drawn: jax.Array, *inputs: jax.Array) -> jax.Array:
    """Computes the measured attention call on query, key and value; with memory, also on relative position inputs."""
    options: dict[str, Any] = {'rng': drawn} if call.mechanism.randomness.always else {}
    if call.memory:
        places = np.arange(call.memory + call.length, dtype=np.int32)[None]
        options = {'query_positions': places[:, call.memory :], 'key_positions': places}
        options['relative'] = Relative(*inputs[3:])
    return attend(*inputs[:3], call.mechanism, **options)


if __name__ == '__main__':
    run_command(main)
