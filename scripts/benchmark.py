"""Measures what training and inference cost, ours and peers' in the same run.

    python scripts/benchmark.py step [--lengths 128,512] [--rounds 3] [--output step.json]
    python scripts/benchmark.py input [--length 128] [--source stdlib]
    python scripts/benchmark.py attention [--lengths 512,1024] [--sides full,window] [--plot attention.svg]
    python scripts/benchmark.py attention --steps 0 --sides full,jax_nn     # temporary memory alone
    python scripts/benchmark.py attention --from_json figures.json --plot attention.svg
    python scripts/benchmark.py memory [--layers 6,12] [--lengths 12288] [--parts depth] [--plot memory.svg]
    python scripts/benchmark.py memory --parts compression [--segments 128,256] [--rounds 3]
    python scripts/benchmark.py finetune [--lengths 128,384] [--ways train,infer] [--output finetune.json]
    python scripts/benchmark.py infer [--models bert_base,4x312] [--rows 1,8] [--length 128]
    python scripts/benchmark.py decode [--contexts 512,4096] [--sides causal,window,fixed]
    python scripts/benchmark.py text_to_text [--parts train,greedy,beam] [--model runs/multi30k --input test.de]
    python scripts/benchmark.py recurrent [--parts cells,lengths,token,memory] [--plot recurrent.svg]
    python scripts/benchmark.py compress [--parts infer,train] [--lengths 128,384] [--rows 1,8,32]
    python scripts/benchmark.py arena [--parts train,rows] [--sides linear,nystrom] [--lengths 1024,4096] [--size small]

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
against depth; fixed and strided sparse against dense attention at 12,288 positions; one softmax against an adaptive
one; compressed segment memory against a plain one of the same reach (`memory_benchmark.py`).

`decode`: tokens/s of generation from caches against reading the whole context again for every token
(`decode_benchmark.py`).

`finetune`: examples/s of fine-tuning and inference against Hugging Face's PyTorch (`fine_tuning_benchmark.py`);
`infer`: a call of an encoder, ours against plain Flax NNX and PyTorch (`inference_benchmark.py`).

`text_to_text`: a training step of T5-small, greedy and beam search, and a file translated, against Hugging Face's
PyTorch (`text_to_text_benchmark.py`).
`recurrent`: recurrent cells against Flax NNX and PyTorch, and against attention by length (`recurrent_benchmark.py`);
`compress`: smaller models against the whole one and PyTorch's (`compression_benchmark.py`);
`arena`: training a long-range classifier by every mechanism against full attention; generators of rows
(`arena_benchmark.py`).

The file of `--output` is replaced as a whole after every length, so a run that is cut leaves what it measured before.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

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

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command, take_command
from efficient_attention.commands.flags import define_integers, define_length, define_output, define_path
from efficient_attention.errors import InputError
from efficient_attention.processes.child_process import child_command
from efficient_attention.whole_files import write_atomically
from scripts.benchmarks import arena as arena_benchmark
from scripts.benchmarks import attention as attention_benchmark
from scripts.benchmarks import compression as compression_benchmark
from scripts.benchmarks import decode as decode_benchmark
from scripts.benchmarks import fine_tuning as fine_tuning_benchmark
from scripts.benchmarks import inference as inference_benchmark
from scripts.benchmarks import memory as memory_benchmark
from scripts.benchmarks import recurrent as recurrent_benchmark
from scripts.benchmarks import text_to_text as text_to_text_benchmark

ROOT = Path(__file__).resolve().parent.parent
TOKENS_A_STEP = 4096
SHAPE = {'layers': 4, 'width': 256, 'heads': 4, 'vocab_size': 8192, 'dropout_rate': 0.1}
# A scan over the layers (the side `scan`) takes longer on CPUs and compiles sooner.
OUR_CHOICES = {'scan_unroll': 4}
# What efficient_attention/processes/allocator.py sets from inside a process, here for both sides, from outside.
KEEP_MEMORY = ':'.join(
    f'glibc.malloc.{name}={value}'
    for name, value in {
        'mmap_max': 0,
        'trim_threshold': -1,
        'top_pad': 256 * 2**20,
        'arena_max': 1,
    }.items()
)


WITH_PEERS = ('step', 'attention', 'finetune', 'infer', 'text_to_text', 'recurrent', 'compress')
PARTS = {  # the sub-commands with a file of their own
    'attention': attention_benchmark,
    'memory': memory_benchmark,
    'decode': decode_benchmark,
    'finetune': fine_tuning_benchmark,
    'infer': inference_benchmark,
    'text_to_text': text_to_text_benchmark,
    'recurrent': recurrent_benchmark,
    'compress': compression_benchmark,
    'arena': arena_benchmark,
}
COMMANDS = ('step', 'input', *PARTS)


def main() -> None:
    """Runs the chosen measurement, prints a table and writes the figures where asked."""
    command, options = read_command_line()
    if command == 'attention' and options.from_json:
        attention_benchmark.show(attention_benchmark.load(options.from_json), options.plot)
    else:
        measure(command, options)


def measure(command: str, options: flags.FlagValues) -> None:
    """Runs the chosen measurement; whenever a part of it is done, the file of figures holds all parts so far."""
    report = {'machine': machine(), 'allocator': options.allocator}
    load, cores = report['machine']['load'], report['machine']['cores']
    if load > cores / 2:
        print(f'note: the machine is busy (load {load:.1f} on {cores} cores); these figures will not compare')
    parts = {
        'step': measure_steps,
        'input': measure_input,
        'attention': measure_attention,
        'memory': measure_memory,
        'decode': measure_decoding,
    }
    own = parts.get(command) or functools.partial(measure_against_peers, command)
    for figures in own(options):
        if options.output:
            write_atomically(options.output, json.dumps(report | figures, indent=2) + '\n')


# ---- the command line ----


class JsonParser(flags.ArgumentParser):
    """Reads a JSON object."""

    def parse(self, argument: str | dict[str, Any]) -> dict[str, Any]:
        """The object that a word is the text of; a default is an object already."""
        found = json.loads(argument) if isinstance(argument, str) else argument
        if not isinstance(found, dict):
            raise ValueError('it must be a JSON object')
        return found


def read_command_line() -> tuple[str, flags.FlagValues]:
    """The sub-command and its flags."""
    command, arguments = take_command(sys.argv, COMMANDS)
    options = define_flags(command)
    parse_flags(arguments, options=options, command=command)
    if command in PARTS:
        PARTS[command].check_flags(options)
    check_flags(command, options)
    return command, options


def define_flags(command: str) -> flags.FlagValues:
    """The flags of a sub-command."""
    options = flags.FlagValues()
    if command in PARTS:
        PARTS[command].define_flags(options)
    else:
        define_flags_of_steps(command, options)
    if command == 'attention':
        flags.DEFINE_integer('steps', 10, 'Timed steps a process; 0 = compile alone.', flag_values=options)
    if command in WITH_PEERS:
        define_path('peers_python', 'Made by `make peers`.', ROOT / '.venv-peers/bin/python', options)
    flags.DEFINE_enum('allocator', 'keep', ('keep', 'default'), 'Of both sides.', flag_values=options)
    define_output('File for the figures, as JSON.', options=options)
    return options


def define_flags_of_steps(command: str, options: flags.FlagValues) -> None:
    """The flags of `step` and `input`."""
    if command == 'step':
        define_integers('lengths', (128, 512), f'Tokens a row; divisors of {TOKENS_A_STEP}', options)
        flags.DEFINE_integer('rounds', 3, 'Processes of each side and length.', flag_values=options)
    else:
        define_length(128, f'Tokens a row; a divisor of {TOKENS_A_STEP}.', options)
        flags.DEFINE_string('source', 'stdlib', 'As data.source in a config.', flag_values=options)
        flags.DEFINE_enum('pairs', 'sop', ('none', 'nsp', 'sop'), 'As data.pairs in a config.', flag_values=options)
        flags.DEFINE_integer('batches', 200, 'Batches to time.', flag_values=options)
    flags.DEFINE_integer('steps', 10, 'Timed steps a process.', flag_values=options)
    fields = 'JSON: fields of our ModelConfig.'
    flags.DEFINE(JsonParser(), 'choices', OUR_CHOICES, fields, options, flags.ArgumentSerializer())


def check_flags(command: str, options: flags.FlagValues) -> None:
    """Raises InputError where a command cannot run, or cannot write what it found."""
    lengths = {'step': lambda: options.lengths, 'input': lambda: [options.length]}.get(command, list)
    for length in lengths():
        if length < 8 or TOKENS_A_STEP % length:
            raise InputError(f'length {length}: it must be at least 8 and divide {TOKENS_A_STEP}')
    for path in (options[name].value for name in ('output', 'plot') if name in options):
        if path and not path.parent.is_dir():
            raise InputError(f'{path}: there is no folder {path.parent}')
    if needs_peers(command, options) and not options.peers_python.exists():
        raise InputError(f'{options.peers_python} does not exist: run `make peers` first, or give --peers_python')


def needs_peers(command: str, options: flags.FlagValues) -> bool:
    """Whether the command runs programs of the peers' environment."""
    if command == 'attention':
        return not options.from_json and any(attention_benchmark.SIDES[name].peer for name in options.sides)
    return command in WITH_PEERS


# ---- the step ----


def measure_steps(options: flags.FlagValues) -> Iterator[dict[str, Any]]:
    """All sides at every length, taking turns; after each, the figures so far."""
    commands = {
        'ours': our_command(),
        'scan': our_command(),
        'peer': [str(options.peers_python), str(ROOT / 'scripts/benchmarks/peers/bert_step.py')],
    }
    choices = {'ours': options.choices, 'scan': options.choices | {'scan_unroll': 1}, 'peer': {}}
    results = {}
    print(f'{"length":>6} {"side":>5} {"tokens/s (min to max)":>26} {"peak GB":>8} {"first step s":>12}   measured')
    for length in options.lengths:
        runs: dict[str, list[dict]] = {side: [] for side in commands}
        for number in range(options.rounds):
            for side in sorted(commands, reverse=number % 2 == 1):
                runs[side].append(run_child(commands[side], options, length, choices[side]))
        results[str(length)] = compare(runs)
        print_comparison(length, results[str(length)])
        yield {'shape': SHAPE, 'tokens_a_step': TOKENS_A_STEP, 'choices': options.choices, 'lengths': results}


def our_command() -> list[str]:
    """The program that measures our step."""
    return [sys.executable, str(ROOT / 'scripts/benchmarks/measure_step.py')]


def run_child(
    command: list[str], options: flags.FlagValues, length: int, choices: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One measurement in a process of its own; its tokens/s is that of the median step.

    choices: fields of our model; None = those of the command line.
    """
    shape = SHAPE | {'length': length, 'rows': TOKENS_A_STEP // length, 'masked': round(0.15 * length)}
    shape |= {'warmup_steps': 3, 'steps': options.steps, 'model': options.choices if choices is None else choices}
    figures = figures_of(command, shape, options.allocator)
    return figures | {'tokens_per_second': TOKENS_A_STEP / statistics.median(figures['seconds'])}


def figures_of(command: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
    """What a child process prints on its last line; ends this program where the child fails."""
    environment = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}
    if allocator == 'keep':
        environment['GLIBC_TUNABLES'] = KEEP_MEMORY
    words = child_command([*command, json.dumps(shape)])
    child = subprocess.run(words, env=environment, capture_output=True, text=True)
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
            'first_seconds': statistics.median(child.get('first_seconds', 0.0) for child in children),
            'processes': children,
        }
    by_round = [
        ours['tokens_per_second'] / peer['tokens_per_second']
        for ours, peer in zip(runs['ours'], runs['peer'], strict=True)
    ]
    return sides | {'ratio': statistics.median(by_round), 'ratio_range': [min(by_round), max(by_round)]}


def print_comparison(length: int, result: dict[str, Any]) -> None:
    """A row a side, and the ratios."""
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


# ---- the input ----


def measure_input(options: flags.FlagValues) -> Iterator[dict[str, Any]]:
    """Tokens/s of the pipeline alone, of our step alone, and how many times the one is the other."""
    delivered = pipeline_tokens_per_second(options)
    consumed = run_child(our_command(), options, options.length)['tokens_per_second']
    print(f'input pipeline alone {delivered:,.0f} tokens/s; a training step alone consumes {consumed:,.0f} tokens/s')
    print(f'the input delivers {delivered / consumed:.1f} times what the step consumes')
    yield {'length': options.length, 'input_tokens_per_second': delivered, 'step_tokens_per_second': consumed}


def pipeline_tokens_per_second(options: flags.FlagValues) -> float:
    """Prepares the source, or finds it prepared, and times its batches without a model."""
    from efficient_attention.config.data import DataConfig
    from efficient_attention.data.batching.host_block import HostBlock
    from efficient_attention.data.corpus.batches import tokens_per_second, training_batches
    from efficient_attention.data.corpus.prepare import prepare_corpus

    config = DataConfig(
        source=options.source,
        vocab_size=SHAPE['vocab_size'],
        length=options.length,
        pairs=options.pairs,
        max_masked=round(0.15 * options.length) + 1,
    )
    rows = TOKENS_A_STEP // options.length
    batches = training_batches(
        prepare_corpus(config), config, HostBlock(rows), seed=0, steps=range(options.batches + 1)
    )
    return tokens_per_second(batches, options.batches)


# ---- attention ----


def measure_attention(options: flags.FlagValues) -> Iterator[dict[str, Any]]:
    """Every chosen side at every length; after each, the figures so far."""
    ours, peer = attention_benchmark.commands([sys.executable], options.peers_python)
    run = functools.partial(figures_of, allocator=options.allocator)
    for report in attention_benchmark.measure(options, ours, peer, run):
        yield {'attention': report}


# ---- memory, decoding ----


def measure_memory(options: flags.FlagValues) -> Iterator[dict[str, Any]]:
    """Every part at every size; after each, the figures so far."""
    run = functools.partial(figures_of, allocator=options.allocator)
    for report in memory_benchmark.measure(options, memory_benchmark.program([sys.executable]), run):
        yield {'memory': report}


def measure_decoding(options: flags.FlagValues) -> Iterator[dict[str, Any]]:
    """Every mechanism at every context; after each, the figures so far."""
    run = functools.partial(figures_of, allocator=options.allocator)
    for report in decode_benchmark.measure(options, decode_benchmark.program([sys.executable]), run):
        yield {'decode': report}


# ---- fine-tuning, inference, text to text, recurrence ----


def measure_against_peers(command: str, options: flags.FlagValues) -> Iterator[dict[str, Any]]:
    """All sides of a sub-command with a file of its own; after each of its parts, the figures so far."""
    run = functools.partial(figures_of, allocator=options.allocator)
    peers = options.peers_python if command in WITH_PEERS else Path()
    programs = PARTS[command].programs([sys.executable], peers)
    for report in PARTS[command].measure(options, programs, run):
        yield {command: report}


def machine() -> dict[str, Any]:
    """What the figures were measured on and when; `load`: the mean number of running processes in the minute before."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    system = {'platform': platform.platform(), 'python': platform.python_version()}
    system |= {'jax': importlib.metadata.version('jax'), 'date': datetime.date.today().isoformat()}
    return system | {'cores': cores, 'load': os.getloadavg()[0]}


if __name__ == '__main__':
    run_command(main)
