"""Measures training of a masked-LM BERT in this project and in PyTorch (`scripts/benchmark.py step`).

The measurements are tokens/s and peak memory. This project and PyTorch get batches of random ids with the same number
of tokens. Our side is measured twice: with unrolled layers (`ours`), and with a scan over the layers (`scan`), which is
slower on CPUs but compiles faster. Each measurement is a separate process, and sides take turns. Ratios above 1 mean
that ours is faster.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_integers
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError
from scripts.benchmarks.process_measurements import peak_bytes

if TYPE_CHECKING:  # at run time, only the child process imports these modules
    from efficient_attention.training.state import TrainState
    from efficient_attention.training.step import StepFn

TOKENS_A_STEP = 4096
SHAPE = {'layers': 4, 'width': 256, 'heads': 4, 'vocab_size': 8192, 'dropout_rate': 0.1}
OUR_CHOICES = {'scan_unroll': 4}
PEER = str(Path(__file__).with_name('peers') / 'step.py')
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


class JsonParser(flags.ArgumentParser):
    """Parser of a flag whose value is a JSON object."""

    def parse(self, argument: str | dict[str, Any]) -> dict[str, Any]:
        """Parses the JSON text of a flag's value; a default value, already a dict, is returned unchanged."""
        found = json.loads(argument) if isinstance(argument, str) else argument
        if not isinstance(found, dict):
            raise ValueError('it must be a JSON object')
        return found


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_integers('lengths', (128, 512), f'Tokens per row; divisors of {TOKENS_A_STEP}', options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side and length.', flag_values=options)
    define_step_flags(options)


def define_step_flags(options: flags.FlagValues) -> None:
    """Defines the flags of benchmarks that measure this project's training step: --steps and --choices."""
    flags.DEFINE_integer('steps', 10, 'Timed steps per process.', flag_values=options)
    fields = 'JSON object with fields of our ModelConfig.'
    flags.DEFINE(JsonParser(), 'choices', OUR_CHOICES, fields, options, flags.ArgumentSerializer())


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a row length does not divide the number of tokens in a training step."""
    for length in options.lengths:
        check_length(length)


def check_length(length: int) -> None:
    """Raises InputError if the row length does not divide the number of tokens in a training step."""
    if length < 8 or TOKENS_A_STEP % length:
        raise InputError(f'length {length}: it must be at least 8 and divide {TOKENS_A_STEP}')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each row length. All implementations take turns.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    commands = {'ours': CHILD, 'scan': CHILD, 'peer': [str(options.peers_python), PEER]}
    choices = {'ours': options.choices, 'scan': options.choices | {'scan_unroll': 1}, 'peer': {}}
    results = {}
    print(f'{"length":>6} {"side":>5} {"tokens/s (min to max)":>26} {"peak GB":>8} {"first step s":>12}   measured')
    for length in options.lengths:
        runs: dict[str, list[dict]] = {side: [] for side in commands}
        for number in range(options.rounds):
            for side in sorted(commands, reverse=number % 2 == 1):
                shape = benchmark_shape(length, options.steps, choices[side])
                runs[side].append(add_tokens_per_second(run(commands[side], shape)))
        results[str(length)] = compare(runs)
        print_comparison(length, results[str(length)])
        yield {'shape': SHAPE, 'tokens_a_step': TOKENS_A_STEP, 'choices': options.choices, 'lengths': results}


def benchmark_shape(length: int, steps: int, choices: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of one measurement, as input of a child process: batch, model, and number of steps."""
    shape = SHAPE | {'length': length, 'rows': TOKENS_A_STEP // length, 'masked': round(0.15 * length)}
    return shape | {'warmup_steps': 3, 'steps': steps, 'model': choices}


def add_tokens_per_second(figures: dict[str, Any]) -> dict[str, Any]:
    """Returns the measurements of a child process, extended by the tokens/s of its median step."""
    return figures | {'tokens_per_second': TOKENS_A_STEP / statistics.median(figures['seconds'])}


def compare(runs: dict[str, list[dict]]) -> dict[str, Any]:
    """Combines the measurements of all processes: tokens/s and memory of each implementation, and the ratio to PyTorch.

    The results are medians, with ranges over the rounds.
    """
    sides = {}
    for side, children in runs.items():
        rates = [child['tokens_per_second'] for child in children]
        sides[side] = {
            'name': children[0]['name'],
            'parameters': children[0]['parameters'],
            'tokens_per_second': statistics.median(rates),
            'range': [min(rates), max(rates)],
            'peak_bytes': statistics.median(child['peak_bytes'] for child in children),
            'baseline_bytes': statistics.median(child['baseline_bytes'] for child in children),
            'first_seconds': statistics.median(child.get('first_seconds', 0.0) for child in children),
            'processes': children,
        }
    by_round = [
        ours['tokens_per_second'] / peer['tokens_per_second']
        for ours, peer in zip(runs['ours'], runs['peer'], strict=True)
    ]
    return sides | {'ratio': statistics.median(by_round), 'ratio_range': [min(by_round), max(by_round)]}


def print_comparison(length: int, result: dict[str, Any]) -> None:
    """Prints a line for each implementation, and the ratios between them."""
    for side in ('ours', 'scan', 'peer'):
        row = result[side]
        low, high = row['range']
        rate = f'{row["tokens_per_second"]:,.0f} ({low:,.0f} to {high:,.0f})'
        first = row['first_seconds'] or ''
        print(f'{length:>6} {side:>5} {rate:>26} {row["peak_bytes"] / 1e9:>8.2f} {first:>12.4}   {row["name"]}')
    low, high = result['ratio_range']
    memory = result['ours']['peak_bytes'] / result['peer']['peak_bytes']
    print(f'{length:>6} ratio {result["ratio"]:.2f} ({low:.2f} to {high:.2f}) of tokens/s, {memory:.2f} of peak memory')
    scan = result['ours']['tokens_per_second'] / result['scan']['tokens_per_second']
    print(f'{length:>6} {scan:.2f} of the tokens/s that a scan over the layers has (side scan, scan_unroll 1)')


# ---- The functions below take one measurement, in a separate process. ----


def make_project_training_step(shape: dict[str, Any]) -> tuple[StepFn, TrainState]:
    """Returns this project's training step of a masked-LM BERT, compiled at its first call, and the initial state."""
    import jax
    from flax import nnx

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.models.pretraining import PretrainingModel
    from efficient_attention.objectives.bert_pretraining import Pretraining
    from efficient_attention.training.optimizer import make_optimizer
    from efficient_attention.training.state import initial_state
    from efficient_attention.training.step import make_train_step

    sizes = {name: shape[name] for name in ('vocab_size', 'layers', 'width', 'heads', 'dropout_rate')}
    # These are the defaults of PyTorch's BERT.
    choices = {'attention_dropout_rate': shape['dropout_rate'], 'activation': 'gelu_erf'}
    config = ModelConfig(**(sizes | choices | shape.get('model', {})))
    graph, params = nnx.split(jax.jit(lambda: PretrainingModel(config, has_pairs=False, rngs=nnx.Rngs(0)))())
    optimizer_config = OptimizerConfig(schedule='constant', warmup_steps=0, bias_correction=True, clip_norm=0.0)
    optimizer = make_optimizer(optimizer_config, total_steps=1000, stacked=None)
    step = make_train_step(graph, Pretraining(has_pairs=False), optimizer)
    return jax.jit(step, donate_argnums=0), initial_state(nnx.to_pure_dict(params), optimizer, seed=0)


def masked_batches(shape: dict[str, Any], count: int) -> list[dict[str, np.ndarray]]:
    """Returns masked-LM batches of random token ids without padding, with a fixed number of masked tokens per row."""
    rng = np.random.default_rng(0)
    size = (shape['rows'], shape['length'])
    batches = []
    for _ in range(count):
        tokens = rng.integers(5, shape['vocab_size'], size, np.int32)
        chosen = np.stack([rng.choice(shape['length'], shape['masked'], replace=False) for _ in range(shape['rows'])])
        positions = np.sort(chosen, axis=1).astype(np.int32)
        batches.append(
            {
                'tokens': tokens,
                'segments': np.ones(size, np.int32),
                'token_types': np.zeros(size, np.int32),
                'positions': np.broadcast_to(np.arange(shape['length'], dtype=np.int32), size),
                'masked_positions': positions,
                'masked_tokens': np.take_along_axis(tokens, positions, axis=1),
                'masked_weights': np.ones(positions.shape, np.float32),
            }
        )
    return batches


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures training: seconds of the first step and of steps after the warm-up, and peak resident memory."""
    import jax

    for name in ('models.pretraining', 'objectives.bert_pretraining', 'training.step'):
        # Modules are imported before the baseline of memory is measured, so that the baseline includes them.
        importlib.import_module(f'efficient_attention.{name}')
    jax.devices()
    baseline = peak_bytes()
    step, state = make_project_training_step(shape)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    batches = masked_batches(shape, 8)
    seconds: list[float] = []
    for number in range(shape['warmup_steps'] + shape['steps']):
        start = time.perf_counter()
        state, metrics = step(state, batches[number % len(batches)])
        loss = float(metrics['loss'])
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - start)
    assert np.isfinite(loss)
    return {
        'name': f'efficient_attention, jax {jax.__version__}',
        'threads': len(os.sched_getaffinity(0)),
        'parameters': parameters,
        'first_seconds': seconds[0],  # seconds of the first step, which include compilation
        'seconds': seconds[shape['warmup_steps'] :],
        'baseline_bytes': baseline,
        'peak_bytes': peak_bytes(),
    }


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
