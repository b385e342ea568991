"""Memory of attention over rows that are split over devices: python scripts/measure_sequence.py

Compiles output and gradients of one attention call, of one row in float32, for 1, 2, 4 and 8 emulated devices and
prints what the compiler counts for each device: its arguments and results, and the temporary memory beside them.
Nothing is run.
"""

from efficient_attention.commands.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import sys

import jax
from absl import flags
from jax.sharding import NamedSharding, PartitionSpec

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_integers, define_length
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import make_mesh
from efficient_attention.planning.topology import emulated_devices

HEADS, WIDTH = 2, 16
EMULATED = 8  # devices


def main() -> None:
    """Prints a line for each number of devices."""
    options = define_flags()
    parse_flags(sys.argv, options=options, old_names={})
    mechanism = parse_mechanism(options.attention)
    if not mechanism.splits_tokens or mechanism.needs_rng:
        raise InputError(f'--attention is {options.attention!r}; use a pattern or linear attention')
    if not all(1 <= devices <= EMULATED and options.length % devices == 0 for devices in options.devices):
        raise InputError(
            f'--devices are {options.devices}; they must be 1 to {EMULATED} and divide --length {options.length}'
        )
    there_are = emulated_devices(EMULATED)
    print(f'{options.attention}, {options.length:,} tokens, {HEADS} heads of {WIDTH}, float32, MiB a device')
    print(f'{"devices":>7} {"arguments":>9} {"results":>8} {"temporary":>9}')
    for devices in options.devices:
        sizes = compiled_sizes(mechanism, options.length, there_are[:devices])
        print(f'{devices:>7} {sizes[0]:>9.1f} {sizes[1]:>8.1f} {sizes[2]:>9.1f}', flush=True)


def define_flags() -> flags.FlagValues:
    """The flags of this command."""
    options = flags.FlagValues()
    flags.DEFINE_string('attention', 'causal & window(512)', "A mechanism's text form.", flag_values=options)
    define_integers('devices', (1, 2, 4, 8), 'Numbers of devices', options)
    define_length(65_536, 'Tokens of the row.', options)
    return options


def compiled_sizes(mechanism: Mechanism, length: int, devices: list[jax.Device]) -> tuple[float, float, float]:
    """MiB of arguments, of results and of temporary memory on each of these devices."""
    mesh = make_mesh(MeshConfig(data=1, sequence=len(devices)), devices)
    tokens = NamedSharding(mesh, PartitionSpec(None, 'sequence' if len(devices) > 1 else None))
    x = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), 'float32', sharding=tokens)

    def both(query: jax.Array, key: jax.Array, value: jax.Array, dout: jax.Array) -> tuple:
        out, pull = jax.vjp(lambda *arrays: attend(*arrays, mechanism), query, key, value)
        return out, pull(dout)

    memory = jax.jit(using_mesh(mesh)(both)).lower(x, x, x, x).compile().memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return tuple(size / 2**20 for size in sizes)  # type: ignore[return-value]


if __name__ == '__main__':
    run_command(main)
