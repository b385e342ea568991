"""Plans the time and memory of single attention calls on a device that this machine need not have.

    .venv-plan/bin/python scripts/benchmarks/planned_attention.py --lengths 16384,65536

The script compiles output and gradients of each mechanism on one row in bfloat16, with 8 heads of width 64. Nothing is
run. The script prints the time of matrix products at the device's published peak, and the time of memory traffic at the
published bandwidth. The estimated time is the larger of both times, separately for each kernel of `mosaic`. The column
"ratio" divides the estimate by the first mechanism's estimate at the same length. The temporary memory is the
compiler's figure. With --rows padded, the calls have the lengths of rows, as models give them;
with --rows packed, they have the segments of packed texts. --dropout is the dropout rate of attention weights.

These columns count only the shortest branch of each conditional. The column "longest ms" is the estimate with the
longest branches. The branches differ in causal attention with features: if features underflow, this attention computes
its outputs again, pair by pair.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import dataclasses
import sys
from typing import Any

import jax
from absl import flags

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import Lengths
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_integers
from efficient_attention.errors import InputError
from efficient_attention.planning.cost import cost_of
from efficient_attention.planning.hlo_program import parse_program
from efficient_attention.planning.plan import estimate_times
from efficient_attention.planning.topology import Topology, make_topology_devices, parse_topology
from efficient_attention.training.throughput import peak_flops

HEADS, WIDTH = 8, 64
ROWS = ('whole', 'padded', 'packed')
ATTENTION = 'causal; linear(causal=True); favor(256, causal=True)'


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """The planned cost of output and gradients of one attention call; times count only the shortest branches."""

    products: float  # milliseconds of matrix products at the device's published peak
    traffic: float  # milliseconds of memory reads and writes at the published bandwidth
    estimate: float  # estimated milliseconds: the larger of products and traffic, separately for each own kernel
    longest: float  # estimated milliseconds with the longest branch of each conditional
    temporary: float  # MiB of temporary memory


def main() -> None:
    """Reads the flags, and prints the plan of each mechanism, one line per length."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    mechanisms = {text.strip(): parse_mechanism(text.strip()) for text in options.attention.split(';')}
    topology = parse_topology(options.topology)
    if topology.chip is None:
        raise InputError(f'--topology {options.topology}: the planner knows no peak and bandwidth of a CPU')
    kind = f'1 {options.rows} row, {HEADS} heads of {WIDTH}, bfloat16, dropout {options.dropout:g}'
    print(f'{options.topology}, {kind}, output and gradients')
    titles = (
        f'{"products ms":>11} {"traffic ms":>10} {"estimate ms":>11} {"longest ms":>10} {"temp MiB":>8} {"ratio":>6}'
    )
    print(f'{"length":>7} {titles}')
    for length in options.lengths:
        first = 0.0
        for text, mechanism in mechanisms.items():
            call = plan_call(mechanism, length, topology, options.rows, options.dropout)
            first = first or call.estimate
            figures = f'{call.products:>11.3f} {call.traffic:>10.3f} {call.estimate:>11.3f} {call.longest:>10.3f}'
            print(f'{length:>7} {figures} {call.temporary:>8.1f} {call.estimate / first:>6.3f}  {text}', flush=True)


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    flags.DEFINE_string(
        'attention', ATTENTION, 'Text forms of mechanisms, separated by semicolons.', flag_values=options
    )
    flags.DEFINE_string('topology', 'h200:1', 'One device, such as h200:1.', flag_values=options)
    flags.DEFINE_enum(
        'rows',
        'whole',
        ROWS,
        'Whether rows have lengths or packed texts, unknown until the program runs.',
        flag_values=options,
    )
    flags.DEFINE_float('dropout', 0.0, 'Dropout rate of attention weights.', 0.0, 0.9, flag_values=options)
    define_integers('lengths', (16_384,), 'Positions', options)
    return options


def plan_call(
    mechanism: Mechanism, length: int, topology: Topology, rows: str = 'whole', dropout_rate: float = 0.0
) -> PlannedCall:
    """Compiles output and gradients of one attention call for a device with a known chip; returns its plan."""
    device, chip = make_topology_devices(topology)[0], topology.chip
    peak = peak_flops(device.device_kind)
    assert chip is not None and peak is not None, topology
    compiled = compile_call(mechanism, length, device, rows, dropout_rate)
    program = parse_program(compiled.as_text() or '')
    shortest, longest = (
        estimate_times(chip, peak, cost_of(dataclasses.replace(program, takes_shortest_branch=is_shortest)))
        for is_shortest in (True, False)
    )
    found = shortest.products, shortest.traffic, shortest.step_seconds, longest.step_seconds
    milliseconds = [1e3 * (seconds or 0.0) for seconds in found]
    return PlannedCall(*milliseconds, temporary=compiled.memory_analysis().temp_size_in_bytes / 2**20)


def compile_call(
    mechanism: Mechanism, length: int, device: jax.Device, rows: str = 'whole', dropout_rate: float = 0.0
) -> jax.stages.Compiled:
    """Compiles output and gradients of one attention call on one row in bfloat16 for a device.

    For `rows` that are 'padded', the program takes the length of the row as an argument; for 'packed', its segments.
    """
    one = jax.sharding.SingleDeviceSharding(device)
    x = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), 'bfloat16', sharding=one)
    drawn = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=one)
    row_lengths = jax.ShapeDtypeStruct((1,), 'int32', sharding=one)
    segments = jax.ShapeDtypeStruct((1, length), 'int32', sharding=one)

    def both(
        q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, key: jax.Array, lengths_B: Any, segments_BL: Any
    ) -> tuple:
        options: dict[str, Any] = {'rng': key} if mechanism.randomness.always or dropout_rate else {}
        options['dropout_rate'] = dropout_rate
        if rows != 'whole':
            texts = Lengths(lengths_B) if rows == 'padded' else segments_BL
            options |= {'query_segments': texts, 'key_segments': texts}
        out, pull = jax.vjp(lambda *inputs: attend(*inputs, mechanism, **options), q, k, v)
        return out, pull(dout)

    with using_platform('tpu' if device.platform == 'tpu' else 'gpu', 1, device.device_kind):
        return jax.jit(both).lower(x, x, x, x, drawn, row_lengths, segments).compile()


if __name__ == '__main__':
    run_command(main)
