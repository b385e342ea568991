"""What does a training step cost, and can the input keep up with it? Ours and a peer's, measured in the same run.

    python scripts/benchmark.py step [--lengths 128 512] [--rounds 3] [--json step.json]
    python scripts/benchmark.py input [--length 128] [--source stdlib]
    python scripts/benchmark.py attention [--lengths 512 ... 65536] [--sides full window ...] [--plot attention.svg]
    python scripts/benchmark.py attention --steps 0 --sides full jax_nn     # temporary memory alone
    python scripts/benchmark.py attention --from_json figures.json --plot attention.svg
    python scripts/benchmark.py memory [--layers 6 ... 48] [--lengths 12288] [--parts depth] [--plot memory.svg]
    python scripts/benchmark.py finetune [--lengths 128 384] [--ways train infer] [--json finetune.json]
    python scripts/benchmark.py decode [--contexts 512 4096] [--sides causal window fixed strided favor]

`step`: a BERT with 4 layers of width 256, 4 heads and 8,192 tokens, float32, dropout 0.1, AdamW, 4,096 tokens a step of
which 15 % are masked; this project against Hugging Face's PyTorch `BertForMaskedLM` (`make peers`). Every measurement
is a process of its own, so its peak memory is its own. The two sides take turns (A B, B A, ...), so that a slow minute
of the machine hits both, and get the same setting of the C allocator, which decides a quarter of a step's time on a
CPU. Measure on an idle machine: two sides that wait for cores do not slow down alike.

`input`: tokens/s of the input pipeline alone against what that step consumes.

`attention`: time and memory of every attention mechanism, full attention and PyTorch libraries against length, at 8
heads of 64, batch 1, float32 (`attention_benchmark.py`). With `--from_json` nothing is measured: the figures of an
earlier run are printed and plotted.

`memory`: temporary and resident memory and time of a decoder's training step: plain, rematerialised and reversible
against depth; fixed and strided sparse against dense attention at 12,288 positions; one softmax against an adaptive one
(`memory_benchmark.py`).

`decode`: tokens/s of generation from caches against reading the whole context again for every token
(`decode_benchmark.py`).

`finetune`: examples/s of fine-tuning and inference of a 6-layer BERT of width 384 against Hugging Face's PyTorch
`BertForSequenceClassification` (`fine_tuning_benchmark.py`).

The file of `--json` is replaced as a whole after every length, so a run that is cut leaves what it measured before.
"""

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError, show_error
from efficient_attention.workdir.atomic_write import write_atomically
from scripts import attention_benchmark, decode_benchmark, fine_tuning_benchmark, memory_benchmark

ROOT = Path(__file__).resolve().parent.parent
TOKENS_A_STEP = 4096
SHAPE = {'layers': 4, 'width': 256, 'heads': 4, 'vocab_size': 8192, 'dropout_rate': 0.1}
# Unrolled layers take 0.57 s a step where a loop over them takes 1.27 s (length 128, 2 CPU cores, jax 0.10.2).
OUR_CHOICES = {'scan_unroll': 4}
# What efficient_attention/commands/allocator.py sets from inside a process, here for both sides, from outside.
KEEP_MEMORY = ':'.join(
    f'glibc.malloc.{name}={value}'
    for name, value in {
        'mmap_max': 0,
        'trim_threshold': -1,
        'top_pad': 256 * 2**20,
        'arena_max': 1,
    }.items()
)


def main() -> int:
    """Runs the chosen measurement, prints a table and writes the figures where asked; 2 on bad input."""
    arguments = parse_arguments()
    try:
        if getattr(arguments, 'from_json', None):
            attention_benchmark.show(attention_benchmark.load(arguments.from_json), arguments.plot)
        else:
            measure(arguments)
    except InputError as error:
        show_error(error)
        return 2
    return 0


def measure(arguments: argparse.Namespace) -> None:
    """Runs the chosen measurement; whenever a part of it is done, the file of figures holds all parts so far."""
    report = {'machine': machine(), 'allocator': arguments.allocator}
    load, cores = report['machine']['load'], report['machine']['cores']
    if load > cores / 2:
        print(f'note: the machine is busy (load {load:.1f} on {cores} cores); these figures will not compare')
    parts = {
        'step': measure_steps,
        'input': measure_input,
        'attention': measure_attention,
        'memory': measure_memory,
        'decode': measure_decoding,
        'finetune': measure_fine_tuning,
    }
    for figures in parts[arguments.command](arguments):
        if arguments.json:
            write_atomically(arguments.json, json.dumps(report | figures, indent=2) + '\n')


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    step = commands.add_parser('step', help='training tokens/s and peak memory, ours and the peer')
    step.add_argument('--lengths', type=int, nargs='+', default=[128, 512], help='tokens a row; divisors of 4096')
    step.add_argument('--rounds', type=int, default=3, help='processes of each side and length')
    input_ = commands.add_parser('input', help='tokens/s of the input pipeline against what a step consumes')
    input_.add_argument('--length', type=int, default=128, help='tokens a row; a divisor of 4096')
    input_.add_argument('--source', default='stdlib', help='as data.source in a config')
    input_.add_argument('--pairs', default='sop', choices=['none', 'nsp', 'sop'])
    input_.add_argument('--batches', type=int, default=200, help='batches to time')
    attention = commands.add_parser('attention', help='time and memory of attention mechanisms against length')
    attention_benchmark.add_arguments(attention)
    memory = commands.add_parser('memory', help="memory and time of a decoder's training step, by depth and by pattern")
    memory_benchmark.add_arguments(memory)
    decode = commands.add_parser('decode', help='tokens/s of generation with and without caches')
    decode_benchmark.add_arguments(decode)
    finetune = commands.add_parser('finetune', help='examples/s of fine-tuning and inference, ours and the peer')
    fine_tuning_benchmark.add_arguments(finetune)
    for command in (step, attention, finetune):
        default = ROOT / '.venv-peers/bin/python'
        command.add_argument('--peers-python', type=Path, default=default, help='made by `make peers`')
    for command in (step, input_, attention):
        only = '; 0 = compile alone' if command is attention else ''
        command.add_argument('--steps', type=int, default=10, help=f'timed steps a process{only}')
    for command in (step, input_, attention, memory, decode, finetune):
        command.add_argument('--allocator', choices=['keep', 'default'], default='keep', help='of both sides')
        command.add_argument('--json', type=Path, help='file for the figures')
    for command in (step, input_):
        command.add_argument('--choices', type=json.loads, default=OUR_CHOICES, help='JSON: fields of our ModelConfig')
    arguments = parser.parse_args()
    parts = {
        'attention': (attention, attention_benchmark),
        'memory': (memory, memory_benchmark),
        'decode': (decode, decode_benchmark),
        'finetune': (finetune, fine_tuning_benchmark),
    }
    if arguments.command in parts:
        command, part = parts[arguments.command]
        part.check_arguments(command, arguments)
    check_arguments(parser, arguments)
    return arguments


def check_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends the program where a command cannot run, or cannot write what it found."""
    rows = {'step': 'lengths', 'input': 'length'}.get(arguments.command)
    given = getattr(arguments, rows) if rows else []
    for length in [given] if isinstance(given, int) else given:
        if length < 8 or TOKENS_A_STEP % length:
            parser.error(f'length {length}: it must be at least 8 and divide {TOKENS_A_STEP}')
    for path in (arguments.json, getattr(arguments, 'plot', None)):
        if path and not path.parent.is_dir():
            parser.error(f'{path}: there is no folder {path.parent}')
    if needs_peers(arguments) and not arguments.peers_python.exists():
        parser.error(f'{arguments.peers_python} does not exist: run `make peers` first, or give --peers-python')


def needs_peers(arguments: argparse.Namespace) -> bool:
    """Whether the command runs programs of the peers' environment."""
    if arguments.command == 'attention':
        return not arguments.from_json and any(attention_benchmark.SIDES[name].peer for name in arguments.sides)
    return arguments.command in ('step', 'finetune')


# ---- the step ----


def measure_steps(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Both sides at every length, taking turns; after each, the figures so far."""
    commands = {'ours': our_command(), 'peer': [str(arguments.peers_python), str(ROOT / 'scripts/peers/bert_step.py')]}
    results = {}
    print(f'{"length":>6} {"side":>5} {"tokens/s (min to max)":>26} {"peak GB":>8}   measured')
    for length in arguments.lengths:
        runs: dict[str, list[dict]] = {side: [] for side in commands}
        for number in range(arguments.rounds):
            for side in sorted(commands, reverse=number % 2 == 1):
                runs[side].append(run_child(commands[side], arguments, length))
        results[str(length)] = compare(runs)
        print_comparison(length, results[str(length)])
        yield {'shape': SHAPE, 'tokens_a_step': TOKENS_A_STEP, 'choices': arguments.choices, 'lengths': results}


def our_command() -> list[str]:
    """The program that measures our step."""
    return [sys.executable, str(ROOT / 'scripts/measure_step.py')]


def run_child(command: list[str], arguments: argparse.Namespace, length: int) -> dict[str, Any]:
    """One measurement in a process of its own; its tokens/s is that of the median step."""
    shape = SHAPE | {'length': length, 'rows': TOKENS_A_STEP // length, 'masked': round(0.15 * length)}
    shape |= {'warmup_steps': 3, 'steps': arguments.steps, 'model': arguments.choices}
    figures = figures_of(command, shape, arguments.allocator)
    return figures | {'tokens_per_second': TOKENS_A_STEP / statistics.median(figures['seconds'])}


def figures_of(command: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
    """What a child process prints on its last line; ends this program where the child fails."""
    environment = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}
    if allocator == 'keep':
        environment['GLIBC_TUNABLES'] = KEEP_MEMORY
    child = subprocess.run([*command, json.dumps(shape)], env=environment, capture_output=True, text=True)
    if child.returncode:
        sys.exit(f'error: {command[-1]} failed:\n{child.stderr[-3000:]}')
    return json.loads(child.stdout.splitlines()[-1])


def compare(runs: dict[str, list[dict]]) -> dict[str, Any]:
    """Median and range over the processes of each side, and the ratio of ours to the peer's, median and by round."""
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
            'processes': children,
        }
    by_round = [
        ours['tokens_per_second'] / peer['tokens_per_second']
        for ours, peer in zip(runs['ours'], runs['peer'], strict=True)
    ]
    return sides | {'ratio': statistics.median(by_round), 'ratio_range': [min(by_round), max(by_round)]}


def print_comparison(length: int, result: dict[str, Any]) -> None:
    """Two rows and the ratios."""
    for side in ('ours', 'peer'):
        row = result[side]
        low, high = row['range']
        rate = f'{row["tokens_per_second"]:,.0f} ({low:,.0f} to {high:,.0f})'
        print(f'{length:>6} {side:>5} {rate:>26} {row["peak_bytes"] / 1e9:>8.2f}   {row["name"]}')
    low, high = result['ratio_range']
    memory = result['ours']['peak_bytes'] / result['peer']['peak_bytes']
    print(f'{length:>6} ratio {result["ratio"]:.2f} ({low:.2f} to {high:.2f}) of tokens/s, {memory:.2f} of peak memory')


# ---- the input ----


def measure_input(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Tokens/s of the pipeline alone, of our step alone, and how many times the one is the other."""
    delivered = pipeline_tokens_per_second(arguments)
    consumed = run_child(our_command(), arguments, arguments.length)['tokens_per_second']
    print(f'input pipeline alone {delivered:,.0f} tokens/s; a training step alone consumes {consumed:,.0f} tokens/s')
    print(f'the input delivers {delivered / consumed:.1f} times what the step consumes')
    yield {'length': arguments.length, 'input_tokens_per_second': delivered, 'step_tokens_per_second': consumed}


def pipeline_tokens_per_second(arguments: argparse.Namespace) -> float:
    """Prepares the source, or finds it prepared, and times its batches without a model."""
    from efficient_attention.config.data import DataConfig
    from efficient_attention.data.corpus.batches import tokens_per_second, training_batches
    from efficient_attention.data.corpus.prepare import prepare_corpus

    config = DataConfig(
        source=arguments.source,
        vocab_size=SHAPE['vocab_size'],
        length=arguments.length,
        pairs=arguments.pairs,
        max_masked=round(0.15 * arguments.length) + 1,
    )
    rows = TOKENS_A_STEP // arguments.length
    batches = training_batches(
        prepare_corpus(config), config, batch_size=rows, seed=0, start_step=0, stop_step=arguments.batches + 1
    )
    return tokens_per_second(batches, arguments.batches)


# ---- attention ----


def measure_attention(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every chosen side at every length; after each, the figures so far."""
    ours, peer = attention_benchmark.commands([sys.executable], arguments.peers_python)
    run = functools.partial(figures_of, allocator=arguments.allocator)
    for report in attention_benchmark.measure(arguments, ours, peer, run):
        yield {'attention': report}


# ---- memory, decoding ----


def measure_memory(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every part at every size; after each, the figures so far."""
    run = functools.partial(figures_of, allocator=arguments.allocator)
    for report in memory_benchmark.measure(arguments, memory_benchmark.program([sys.executable]), run):
        yield {'memory': report}


def measure_decoding(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every mechanism at every context; after each, the figures so far."""
    run = functools.partial(figures_of, allocator=arguments.allocator)
    for report in decode_benchmark.measure(arguments, decode_benchmark.program([sys.executable]), run):
        yield {'decode': report}


# ---- fine-tuning ----


def measure_fine_tuning(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Both sides at every length and way; after each, the figures so far."""
    run = functools.partial(figures_of, allocator=arguments.allocator)
    both = fine_tuning_benchmark.commands([sys.executable], arguments.peers_python)
    for report in fine_tuning_benchmark.measure(arguments, both, run):
        yield {'finetune': report}


def machine() -> dict[str, Any]:
    """What the figures were measured on and when; `load`: the mean number of running processes in the minute before."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    system = {'platform': platform.platform(), 'python': platform.python_version()}
    system |= {'jax': importlib.metadata.version('jax'), 'date': datetime.date.today().isoformat()}
    return system | {'cores': cores, 'load': os.getloadavg()[0]}


if __name__ == '__main__':
    sys.exit(main())
