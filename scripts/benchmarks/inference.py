"""Measures an encoder's forward pass in this project, in plain Flax NNX and in PyTorch (`scripts/benchmark.py infer`).

Four sides get rows of random ids of one length: ours with parameters in the inference layout, ours with the stacked
parameters of training, an encoder in plain Flax NNX (`plain_nnx.py`), and transformers' BertModel in PyTorch
(`peers/inference.py`). The ratio is our time over the faster peer's time in the same round: below 1 ours is faster.
Compilation is timed separately. Memory is the program's memory besides its arguments and results; it is not known for
PyTorch.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers, define_length
from efficient_attention.errors import InputError
from scripts.benchmarks.process_measurements import read_process_status_bytes, reset_peak_memory

VOCABULARY = {'vocab_size': 30_522}
MODELS = {
    'bert_base': {'layers': 12, 'width': 768, 'heads': 12, 'feed_forward_width': 3072, **VOCABULARY},
    '4x312': {'layers': 4, 'width': 312, 'heads': 12, 'feed_forward_width': 1200, **VOCABULARY},
}
SIDES = ('ours', 'stacked', 'nnx', 'torch')
LAYOUTS = {'ours': 'separate', 'stacked': 'stacked', 'nnx': 'plain', 'torch': 'separate'}
PEERS = ('nnx', 'torch')
MEBIBYTE = 2**20
CELL = 44  # characters of one implementation's column in the printed table
PEER = str(Path(__file__).with_name('peers') / 'inference.py')
LEAST_SECONDS = 1.0  # calls are timed until their total time reaches this many seconds
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('models', tuple(MODELS), 'Encoders', options)
    define_integers('rows', (1, 8), 'Rows per call', options)
    define_length(128, 'Tokens per row.', options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side and shape.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if the value of a flag is out of range."""
    if options.rounds < 1:
        raise InputError(f'--rounds is {options.rounds}; it must be at least 1')
    if not 1 <= options.length <= 512:
        raise InputError(f'--length is {options.length}; it must be from 1 to 512, the positions of the model')
    for rows in options.rows:
        if rows < 1:
            raise InputError(f'--rows has {rows}; each must be at least 1')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each model and batch size. All implementations take
    turns.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    commands = dict.fromkeys(SIDES, CHILD) | {'torch': [str(options.peers_python), PEER]}
    report: dict[str, Any] = {'length': options.length, 'models': {}}
    print(
        f'{"model":>10} {"rows":>4}'
        + ''.join(f'{f"{side}: ms, memory, compilation":>{CELL}}' for side in SIDES)
        + '  ratio'
    )
    for name in options.models:
        report['models'][name] = {}
        for rows in options.rows:
            shape = {'model': MODELS[name], 'rows': rows, 'length': options.length}
            row = compare(shape, options.rounds, commands, run)
            report['models'][name][str(rows)] = row
            print(table_line(name, rows, row))
            yield report


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """Measures one model in all implementations; returns times, memory, and our time divided by the fastest other
    time.
    """
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for number in range(rounds):
        for side in commands if number % 2 == 0 else reversed(commands):
            runs[side].append(run(commands[side], shape | {'layout': LAYOUTS[side]}))
    times = {side: [one['milliseconds'] for one in found] for side, found in runs.items()}
    best = [min(pair) for pair in zip(*(times[peer] for peer in PEERS), strict=True)]
    ratios = [ours / peer for ours, peer in zip(times['ours'], best, strict=True)]
    sides = {side: found[-1] | {'milliseconds': statistics.median(times[side])} for side, found in runs.items()}
    return sides | {'times': times, 'ratio': statistics.median(ratios), 'ratio_range': [min(ratios), max(ratios)]}


def table_line(name: str, rows: int, row: dict[str, Any]) -> str:
    """Returns the line of the printed table about one model and batch size: times, memory and compile seconds."""
    cells = []
    for side in SIDES:
        found, times = row[side], row['times'][side]
        said = f', {found["temporary_bytes"] / MEBIBYTE:.1f} MiB' if 'temporary_bytes' in found else ''
        said += f', {found["compile_seconds"]:.1f} s' if 'compile_seconds' in found else ''
        cells.append(f'{found["milliseconds"]:.1f} ({min(times):.1f} to {max(times):.1f}){said}')
    low, high = row['ratio_range']
    ratio = f'  {row["ratio"]:.2f} ({low:.2f} to {high:.2f})'
    return f'{name:>10} {rows:>4}' + ''.join(f'{cell:>{CELL}}' for cell in cells) + ratio


# ---- The functions below take one measurement, in a separate process. ----


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures an encoder's forward pass: milliseconds, memory, compile time and program size.

    'temporary_bytes' is the compiler's memory besides arguments and results. 'peak_bytes' is the growth of resident
    memory during calls (None if the system does not report it).

    Args:
        shape: 'model' (fields of `ModelConfig`), 'rows', 'length', and 'layout': 'separate' for the inference layout,
            'stacked' for the training layout, or 'plain' for the encoder in plain Flax NNX.
    """
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.models.encoder import Encoder
    from efficient_attention.models.quantized import store_int8_codes
    from efficient_attention.models.unstacked_layers import lay_out_for_inference
    from scripts.benchmarks.plain_nnx import measure_plain_encoder

    if shape['layout'] == 'plain':
        return measure_plain_encoder(shape, median_call_milliseconds)
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in shape['model'].items()}
    config = ModelConfig(**fields, activation='gelu_erf', max_length=512)
    graph, state = nnx.split(nnx.eval_shape(lambda: Encoder(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: 0.02 * rng.standard_normal(leaf.shape, np.float32), nnx.to_pure_dict(state))
    if config.quantization != 'none':
        module = nnx.merge(graph, params)
        store_int8_codes(module)
        graph, state = nnx.split(module)
        params = nnx.to_pure_dict(state)
    if shape['layout'] == 'separate':
        graph, params = lay_out_for_inference(graph, params)
    params = jax.device_put(params)
    tokens_BL = jnp.asarray(rng.integers(5, config.vocab_size, (shape['rows'], shape['length'])), jnp.int32)
    inputs = params, tokens_BL, jnp.ones_like(tokens_BL)
    start = time.perf_counter()
    program = jax.jit(lambda params, *inputs: nnx.merge(graph, params)(*inputs)).lower(*inputs).compile()
    seconds = time.perf_counter() - start
    before = reset_peak_memory()
    milliseconds = median_call_milliseconds(lambda: program(*inputs))
    return {
        'name': f'efficient_attention, jax {jax.__version__}',
        'milliseconds': milliseconds,
        'parameter_bytes': sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
        'peak_bytes': None if before is None else max(read_process_status_bytes('VmHWM') - before, 0),
        'temporary_bytes': program.memory_analysis().temp_size_in_bytes,
        'program_lines': len(program.as_text().splitlines()),
        'compile_seconds': seconds,
    }


def median_call_milliseconds(call: Any) -> float:
    """Returns the median milliseconds of calls of a function, after two untimed calls."""
    import jax

    for _ in range(2):
        jax.block_until_ready(call())
    times: list[float] = []
    while len(times) < 5 or sum(times) < LEAST_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
