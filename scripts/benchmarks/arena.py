"""Measures speed and memory of each mechanism on Long Range Arena sequences (`scripts/benchmark.py arena`).

Each mechanism is a side, which is compared with full attention.

`train`: training steps per second and temporary memory of the byte classifier of configs/arena.py, at 1K to 4K bytes
(table 2 of Tay et al. 2020, arXiv 2011.04006). Each side runs in a separate process, and sides take turns. The compiler
states the temporary memory. Resident memory is not compared, because allocators differ more than the sides.
`rows`: rows per second that each generator makes on one core.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from configs.arena import get_config, mechanisms
from efficient_attention.commands.flags import define_choices, define_integers
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.errors import InputError
from scripts.benchmarks.memory import run_steps

if TYPE_CHECKING:  # at run time, only the child process imports these modules
    from efficient_attention.training.state import TrainState
    from efficient_attention.training.step import StepFn

FULL = 'full'
SIDES = tuple(mechanisms(1))
SIZES = ('small', 'paper', 'code')
MEBIBYTE = 2**20
PARTS = ('train', 'rows')
GENERATED = (
    'listops:rows=500:length=500-2000',
    'pathfinder:rows=200:size=20:bars=easy:starts=fixed',
    'pathfinder:rows=100:size=32',
    'pathfinder:rows=20:size=128',
    'pathfinder:rows=5:size=256',
    'recall:rows=2000:length=128:pairs=4:keys=8:values=4',
)
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('parts', PARTS, 'Parts to measure', options)
    define_choices('sides', SIDES, 'Mechanisms; `full` is always measured', options)
    define_integers('lengths', (1024, 2048, 3072, 4096), 'Bytes per row', options)
    flags.DEFINE_integer('rows', 32, 'Rows per step.', flag_values=options)
    flags.DEFINE_enum('size', 'small', SIZES, 'Model size.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side and length.', flag_values=options)
    flags.DEFINE_integer('steps', 3, 'Timed steps per process.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a numeric flag is below 1."""
    for name in ('rows', 'rounds', 'steps'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    for length in options.lengths:
        if length < 1:
            raise InputError(f'--lengths has {length}; each must be at least 1')


def benchmark_shape(side: str, size: str, length: int) -> dict[str, Any]:
    """Returns the config of the `text` task with one mechanism and row length, as input of a child process."""
    config = get_config(f'text,{side},{size}')
    config.model.update(mechanisms(length)[side])
    config.model.max_length = length
    groups = {'model': config.model, 'head': config.head}
    fields = {
        name: {field: value for field, value in group.to_dict().items() if value is not None}
        for name, group in groups.items()
    }
    return fields | {'length': length}


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each row length.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    report: dict[str, Any] = {}
    if 'rows' in options.parts:
        report['generated'] = measure_row_generation()
        yield report
    if 'train' in options.parts:
        for figures in measure_training(options, run):
            yield report | figures


def measure_row_generation() -> dict[str, dict[str, float]]:
    """Measures how fast datasets are generated; returns {dataset: {split: rows per second on one core}}.

    Seconds are processor time. The first row is not timed, because it includes reading shared data. If a hash assigns
    rows to splits, test rows are only a share of the generated rows.
    """
    return {text: {split: row_generation_speed(text, split) for split in ('train', 'test')} for text in GENERATED}


def row_generation_speed(text: str, split: str) -> float:
    """Returns how many rows of a dataset's split are generated per second of processor time."""
    rows = open_arena_dataset(text, 'a set').rows(split)
    next(rows)
    start = time.process_time()
    made = sum(1 for _ in rows)
    found = made / (time.process_time() - start)
    print(f'{text} {split}: {found:,.0f} rows/s')
    return found


def measure_training(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields all measurements so far of the mechanisms' training speed and memory, once after each row length.

    The arguments are the same as in `measure`.
    """
    sides = [FULL, *(side for side in SIDES if side in options.sides and side != FULL)]
    report: dict[str, Any] = {}
    head = (
        f'{"length":>6} {"side":>22} {"steps/s (min to max)":>26} {"of full":>8} {"temporary MiB":>14} {"of full":>8}'
    )
    print(f'{head} {"parameters":>11}')
    for length in options.lengths:
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                shape = benchmark_shape(side, options.size, length) | {'rows': options.rows, 'steps': options.steps}
                runs[side].append(run(CHILD, shape))
        report[str(length)] = summarize_runs(runs)
        for side, found in report[str(length)].items():
            print(table_line(length, side, found))
        yield {'size': options.size, 'rows': options.rows, 'lengths': report}


def summarize_runs(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Returns each mechanism's training speed (median and range) and memory, also relative to full attention."""
    rates = {side: [1 / statistics.median(one['seconds']) for one in found] for side, found in runs.items()}
    full = statistics.median(rates[FULL])
    report = {}
    for side, found in runs.items():
        middle, temporary = statistics.median(rates[side]), found[0]['temporary_bytes']
        report[side] = {
            'steps_per_second': middle,
            'range': [min(rates[side]), max(rates[side])],
            'speed': middle / full,
            'temporary_bytes': temporary,
            'memory': temporary / runs[FULL][0]['temporary_bytes'],
            'parameters': found[0]['parameters'],
        }
    return report


def table_line(length: int, side: str, found: dict[str, Any]) -> str:
    """Returns the line of the printed table with the measurements of one mechanism."""
    low, high = found['range']
    spread = f'{found["steps_per_second"]:.2f} ({low:.2f} to {high:.2f})'
    temporary = f'{found["temporary_bytes"] / MEBIBYTE:14,.0f} {found["memory"]:8.2f}'
    parameters = f'{found["parameters"]:,}'
    return f'{length:>6} {side:>22} {spread:>26} {found["speed"]:8.2f} {temporary} {parameters:>11}'


# ---- The functions below take one measurement, in a separate process. ----


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures a classifier's training step: the compiler's temporary bytes, and seconds and memory of real steps.

    `shape` has `model` and `head` (fields of ModelConfig and HeadConfig), `rows`, `length` and `steps`, the number of
    timed steps after an untimed one.
    """
    import jax

    config, head = ModelConfig(**shape['model']), HeadConfig(**shape['head'])
    batch = random_batch(shape['rows'], shape['length'], config.vocab_size)
    train_step, first_state = make_step(config, head)
    state = jax.eval_shape(first_state)
    step = jax.jit(train_step, donate_argnums=0).lower(state, batch).compile()
    # A compiled program creates the state, so that each array has a separate buffer, which donation requires.
    return {
        'name': f'efficient_attention, jax {jax.__version__}',
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        'temporary_bytes': step.memory_analysis().temp_size_in_bytes,
        **run_steps(step, jax.jit(first_state)(), batch, shape['steps']),
    }


def make_step(config: ModelConfig, head: HeadConfig) -> tuple[StepFn, Callable[[], TrainState]]:
    """Returns the training step of a classifier with AdamW, and a function that creates the initial state."""
    import jax
    from flax import nnx

    from efficient_attention.models.fine_tuning import FineTuningModel
    from efficient_attention.objectives.fine_tuning import FineTuning
    from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer
    from efficient_attention.training.state import initial_state
    from efficient_attention.training.step import make_train_step
    from efficient_attention.training.step_extensions import build_step_extensions

    graph, _ = nnx.split(nnx.eval_shape(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0))))
    optimizer = make_optimizer(
        OptimizerConfig(schedule='constant', warmup_steps=0), total_steps=1000, stacked=STACKED_LAYERS
    )

    def first_state() -> TrainState:
        params = nnx.to_pure_dict(nnx.state(FineTuningModel(config, head, rngs=nnx.Rngs(0))))
        return initial_state(params, optimizer, seed=0)

    parts = build_step_extensions(jax.eval_shape(first_state))
    return make_train_step(graph, FineTuning(head), optimizer, parts=parts), first_state


def random_batch(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Returns a batch of random token ids without padding, with class labels."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab_size, (rows, length), np.int32)
    whole = {'segments': np.ones_like(tokens), 'token_types': np.zeros_like(tokens)}
    labels = {'label': np.arange(rows, dtype=np.int32) % 2, 'index': np.arange(rows, dtype=np.int32)}
    return whole | labels | {'tokens': tokens, 'weights': np.ones(rows, np.float32)}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
