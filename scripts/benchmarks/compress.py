"""Measures time and memory of compressed models against the uncompressed model (`scripts/benchmark.py compress`).

`infer`: a forward pass of an encoder of MiniLM's shape and of smaller ones, in this project and in PyTorch (float32 and
dynamic int8). Each of these sides has random weights and runs in a separate process, and sides take turns. The speed is
the time of our uncompressed float32 model divided by the side's time, so above 1 the side is faster. Other columns are
the bytes of the parameters on disk, and the growth of resident memory during calls.

`train`: steps of a classifier of 6 layers: plain, with movement pruning, and with quantization (`model.quantization`).
Also steps of a student of 3 layers: without a teacher, with a running teacher, and with cached teacher logits.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices, define_integers
from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.config.prune import PruneConfig
from efficient_attention.errors import InputError
from scripts.benchmarks import inference

WHOLE = {'layers': 6, 'width': 384, 'heads': 12, 'feed_forward_width': 1536, 'vocab_size': 30_522}
THIRD = WHOLE | {'layer_heads': [6] * 6, 'layer_units': [384] * 6}
MODELS: dict[str, dict[str, Any]] = {
    'whole': WHOLE,
    '3x384': WHOLE | {'layers': 3},
    '4x312': WHOLE | {'layers': 4, 'width': 312, 'feed_forward_width': 1200},
    '2x128': WHOLE | {'layers': 2, 'width': 128, 'heads': 2, 'feed_forward_width': 512},
    'third': THIRD,  # keeps 6 of 12 heads and 384 of 1,536 feed-forward units: a third of the weights
    'int8': WHOLE | {'quantization': 'int8'},
    'int8_weights': WHOLE | {'quantization': 'int8_weights'},
    'third_int8': THIRD | {'quantization': 'int8', 'ranks': ['token=128']},
}
PEERS = {'torch': {}, 'torch_int8': {'quantization': 'int8'}}
BESIDE = {'whole': 'torch', 'int8': 'torch_int8'}  # {our model: the same model in PyTorch}
PARTS = ('infer', 'train')
RATIOS = {  # {name of a ratio: (training method in the numerator, training methods in the denominator)}
    'movement': ('movement', ('plain',)),
    'qat': ('qat', ('plain',)),
    'live': ('live', ('teacher', 'student')),
    'kept': ('kept', ('student',)),
}
MEBIBYTE = 2**20
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command that measures training steps in a separate process


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('parts', PARTS, 'Parts to measure', options)
    define_choices('sides', (*MODELS, *PEERS), 'Models of `infer`; `whole` is always measured', options)
    define_integers('lengths', (128, 384), 'Tokens per row', options)
    define_integers('rows', (1, 8, 32), 'Rows per call', options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side and shape.', flag_values=options)
    flags.DEFINE_integer('steps', 5, 'Timed steps per process and training method.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if the value of a flag is out of range."""
    for name in ('rounds', 'steps'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    for length in options.lengths:
        if not 1 <= length <= 512:
            raise InputError(f'--lengths has {length}; it must be from 1 to 512, the positions of the model')
    for rows in options.rows:
        if rows < 1:
            raise InputError(f'--rows has {rows}; each must be at least 1')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each row length and batch size.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    report: dict[str, Any] = {}
    if 'infer' in options.parts:
        peer = [str(options.peers_python), inference.PEER]
        commands = dict.fromkeys(MODELS, inference.CHILD) | dict.fromkeys(PEERS, peer)
        sides = ['whole', *(side for side in (*MODELS, *PEERS) if side in options.sides and side != 'whole')]
        print(f'{"length":>6} {"rows":>4} {"side":>12} {"ms (min to max)":>28} {"speed":>6} {"MiB":>7} {"beside":>7}')
        for length in options.lengths:
            for rows in options.rows:
                found = measure_inference(sides, {'length': length, 'rows': rows}, options.rounds, commands, run)
                report.setdefault('infer', {}).setdefault(str(length), {})[str(rows)] = found
                yield report
    if 'train' in options.parts:
        for length in options.lengths:
            shape = {'model': WHOLE, 'student_layers': 3, 'rows': 32, 'length': length, 'steps': options.steps}
            runs = [run(CHILD, shape)['milliseconds'] for _ in range(options.rounds)]
            report.setdefault('train', {})[str(length)] = summarize_training(runs)
            print(f'train, length {length}: {json.dumps(report["train"][str(length)]["ratios"])}')
            yield report


def measure_inference(
    sides: list[str], shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run
) -> dict[str, Any]:
    """Measures, prints and returns the inference time and memory of each model, for one batch size and row length."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            fields = {'model': MODELS.get(side, WHOLE), 'layout': 'separate'} | PEERS.get(side, {})
            runs[side].append(run(commands[side], shape | fields))
    times = {side: [one['milliseconds'] for one in found] for side, found in runs.items()}
    whole = statistics.median(times['whole'])
    report: dict[str, Any] = {}
    for side, found in runs.items():
        middle = statistics.median(times[side])
        report[side] = found[-1] | {'milliseconds': middle, 'times': times[side], 'speed': whole / middle}
        beside = found[-1].get('peak_bytes')
        said = f'{beside / MEBIBYTE:7.1f}' if beside is not None else f'{"":7}'
        spread = f'{middle:.1f} ({min(times[side]):.1f} to {max(times[side]):.1f})'
        size = found[-1]['parameter_bytes'] / MEBIBYTE
        print(
            f'{shape["length"]:>6} {shape["rows"]:>4} {side:>12} {spread:>28} {whole / middle:6.2f} {size:7.1f} {said}'
        )
    for ours, peer in BESIDE.items():
        if ours in report and peer in report:
            speed = report[peer]['milliseconds'] / report[ours]['milliseconds']
            print(f'{"":>11} {ours}: {speed:.2f} times as fast as {peer}')
    return report


def summarize_training(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Returns median milliseconds per step of each training method, and ratios between methods such as `qat / plain`.

    Each ratio is computed per process; the result is the median over processes.
    """
    middle = {way: statistics.median(one[way] for one in runs) for way in runs[0]}
    ratios = {
        name: statistics.median(one[above] / sum(one[way] for way in below) for one in runs)
        for name, (above, below) in RATIOS.items()
    }
    return {'milliseconds': middle, 'ratios': {name: round(ratio, 3) for name, ratio in ratios.items()}}


# ---- The functions below take one measurement, in a separate process. ----


HEAD = {'kind': 'sequence'}  # fields of HeadConfig, for a classifier of sequences
STEPS = 1000  # number of training steps for which the learning-rate and pruning schedules are made
WAYS = ('plain', 'movement', 'qat', 'student', 'teacher', 'live', 'kept')
Step = Callable[[], Any]


class TrainedModel:
    """A classifier that can train on batches, with its training state and optionally with pruning or distillation."""

    def __init__(
        self, fields: dict[str, Any], *, is_pruned: bool = False, distill: DistillConfig | None = None
    ) -> None:
        import jax
        from flax import nnx

        from efficient_attention.config.head import HeadConfig
        from efficient_attention.config.model import ModelConfig
        from efficient_attention.models.fine_tuning import FineTuningModel
        from efficient_attention.objectives.distillation import Distillation
        from efficient_attention.objectives.fine_tuning import FineTuning
        from efficient_attention.pruning.pruner import make_pruner
        from efficient_attention.training.optimizer import make_optimizer
        from efficient_attention.training.state import initial_state
        from efficient_attention.training.step import make_train_step
        from efficient_attention.training.step_extensions import build_step_extensions

        config, head = ModelConfig(**fields, scan_unroll=fields['layers']), HeadConfig(**HEAD)
        graph, params = nnx.split(FineTuningModel(config, head, rngs=nnx.Rngs(0)))
        pure = nnx.to_pure_dict(params)
        prune = PruneConfig(method='movement', keep=0.15, begin=0.0, end=1.0) if is_pruned else PruneConfig()
        pruner = make_pruner(prune, pure, head_width=config.head_width, steps=STEPS)
        rule = OptimizerConfig(schedule='constant', warmup_steps=0, bias_correction=True)
        rate = prune.learning_rate if pruner else 0.0
        optimizer = make_optimizer(rule, STEPS, stacked=None, scores_rate=rate)
        scores = None if pruner is None else pruner.initial_scores(jax.random.key(0))
        self.state = initial_state(pure, optimizer, seed=0, scores=scores)
        widths = config.width, config.width
        objective = Distillation(FineTuning(head), distill, (), widths) if distill else FineTuning(head)
        parts = build_step_extensions(self.state, pruner=pruner)
        self.program = jax.jit(make_train_step(graph, objective, optimizer, parts=parts), donate_argnums=0)

    def take_step(self, batch: dict[str, Any]) -> None:
        """Trains on one batch and waits for the result."""
        self.state, metrics = self.program(self.state, batch)
        assert np.isfinite(float(metrics['loss']))


def make_step_functions(shape: dict[str, Any]) -> dict[str, Step]:
    """Returns, for each training method, a function that takes one training step and waits for the result."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from efficient_attention.config.head import HeadConfig
    from efficient_attention.config.model import ModelConfig
    from efficient_attention.models.fine_tuning import FineTuningModel
    from efficient_attention.models.unstacked_layers import lay_out_for_inference

    fields, rows, length = shape['model'], shape['rows'], shape['length']
    rng = np.random.default_rng(0)
    tokens_BL = rng.integers(5, fields['vocab_size'], (rows, length)).astype(np.int32)
    batch = {
        'tokens': jnp.asarray(tokens_BL),
        'segments': jnp.ones((rows, length), jnp.int32),
        'token_types': jnp.zeros((rows, length), jnp.int32),
        'label': jnp.asarray(np.arange(rows) % 2, jnp.int32),
        'index': jnp.arange(rows, dtype=jnp.int32),
        'weights': jnp.ones(rows, jnp.float32),
    }
    small = fields | {'layers': shape['student_layers']}
    distill = DistillConfig(teacher='a', temperature=2.0, labels=0.5, soft=0.5)
    teacher = FineTuningModel(ModelConfig(**fields), HeadConfig(**HEAD), rngs=nnx.Rngs(1))
    graph, params = nnx.split(teacher)
    graph, laid_out = lay_out_for_inference(graph, nnx.to_pure_dict(params))
    say = jax.jit(lambda params, batch: nnx.merge(graph, params).outputs(batch)['logits'])
    known = batch | {'teacher_logits': say(laid_out, batch)}
    plain, movement = TrainedModel(fields), TrainedModel(fields, is_pruned=True)
    qat, student = TrainedModel(fields | {'quantization': 'int8'}), TrainedModel(small)
    live, kept = TrainedModel(small, distill=distill), TrainedModel(small, distill=distill)
    return {
        'plain': lambda: plain.take_step(batch),
        'movement': lambda: movement.take_step(batch),
        'qat': lambda: qat.take_step(batch),
        'student': lambda: student.take_step(batch),
        'teacher': lambda: jax.block_until_ready(say(laid_out, batch)),
        'live': lambda: live.take_step(batch | {'teacher_logits': say(laid_out, batch)}),
        'kept': lambda: kept.take_step(known),
    }


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures the median milliseconds per step of each training method; the methods take turns, step by step.

    Args:
        shape: 'model' (fields of `ModelConfig`), 'student_layers', 'rows', 'length' and 'steps'.
    """
    import jax

    steps = make_step_functions(shape)
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(shape['steps']):
        for way, step in steps.items():
            start = time.perf_counter()
            step()
            times[way].append(time.perf_counter() - start)
    milliseconds = {way: 1e3 * statistics.median(found) for way, found in times.items()}
    return {'name': f'efficient_attention, jax {jax.__version__}', 'milliseconds': milliseconds}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))
