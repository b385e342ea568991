"""Measures time and memory of training and inference, in this project and in comparable libraries.

    python scripts/benchmark.py step [--lengths 128,512] [--rounds 3] [--output step.json]
    python scripts/benchmark.py input [--length 128] [--source stdlib]
    python scripts/benchmark.py attention [--lengths 512,1024] [--sides full,window] [--plot attention.svg]
    python scripts/benchmark.py attention --steps 0 --sides full,jax_nn     # only temporary memory
    python scripts/benchmark.py attention --from_json figures.json --plot attention.svg
    python scripts/benchmark.py memory [--layers 6,12] [--lengths 12288] [--parts depth] [--plot memory.svg]
    python scripts/benchmark.py memory --parts compression [--segments 128,256] [--rounds 3]
    python scripts/benchmark.py finetune [--lengths 128,384] [--ways train,infer] [--output finetune.json]
    python scripts/benchmark.py infer [--models bert_base,4x312] [--rows 1,8] [--length 128]
    python scripts/benchmark.py decode [--contexts 512,4096] [--sides causal,window,fixed]
    python scripts/benchmark.py text_to_text [--parts train,greedy,beam] [--model runs/multi30k --input test.de]
    python scripts/benchmark.py gpt2 [--parts choices,generate]
    python scripts/benchmark.py recurrent [--parts cells,lengths,token,memory] [--plot recurrent.svg]
    python scripts/benchmark.py compress [--parts infer,train] [--lengths 128,384] [--rows 1,8,32]
    python scripts/benchmark.py arena [--parts train,rows] [--sides linear,nystrom] [--lengths 1024,4096] [--size small]
    python scripts/benchmark.py compare old.json new.json

A *side* is one of the compared implementations: this project, a variant of it, or a *peer*, which is another library.

`step`: a training step against Hugging Face's PyTorch `BertForMaskedLM` (install it with `make peers`).
The model is a BERT with 4 layers of width 256, 4 heads and 8,192 tokens, float32, dropout 0.1, trained by AdamW. A step
has 4,096 tokens, of which 15 % are masked. Each measurement runs in a separate process, so peak memory is measured per
side. The sides (ours, ours with scanned layers, PyTorch) take turns, in reversed order every other round, so a slow
minute of the machine hits all. All sides get the same settings of the C allocator, which decide a quarter of a step's
time on a CPU. Measure on an idle machine, because the sides do not slow down alike when cores are busy.

`input`: tokens/s of the input pipeline by itself, against the tokens/s that the training step consumes.

`attention`: time and memory of every attention mechanism, full attention and PyTorch libraries against length, at 8
heads of 64, batch 1, float32. With `--from_json` nothing is measured: the measurements of an earlier run are printed
and plotted.

`memory`: temporary memory, resident memory and time of a decoder's training step. It compares plain, rematerialised and
reversible layers by depth; fixed and strided sparse with dense attention at 12,288 positions; a plain with an adaptive
softmax; compressed segment memory with plain memory of the same reach.

`decode`: tokens/s of generation with caches, against recomputing the whole context for every token.

`finetune`: examples/s of fine-tuning and inference against Hugging Face's PyTorch.

`infer`: time of an encoder's forward pass: this project, plain Flax NNX and PyTorch.

`text_to_text`: a training step of T5-small, greedy and beam search, and translation of a file, against Hugging Face's
PyTorch.

`gpt2`: scoring of choices and generation of text, against lm-evaluation-harness and Hugging Face's PyTorch.

`recurrent`: recurrent cells against Flax NNX and PyTorch, and against attention by length.

`compress`: compressed models against the uncompressed model and PyTorch's compressed models.

`arena`: training a long-range classifier with each mechanism against full attention, and speed of the row generators.

`compare`: prints which figures of two outputs moved beyond the range of their repeats. It also reads the files of
`scripts/measure_gpu.py`, which measures on GPUs.

Each command has a file in scripts/benchmarks. The `--output` file is replaced after every length, so an interrupted run
keeps its earlier measurements.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import datetime
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command, split_subcommand
from efficient_attention.commands.flags import define_output, define_path
from efficient_attention.errors import InputError
from efficient_attention.processes.child_process import command_tied_to_parent
from scripts.benchmarks import compare

ROOT = Path(__file__).resolve().parent.parent
# This maps each sub-command to its file in scripts/benchmarks.
# The file of each sub-command has the functions `define_flags`, `check_flags` and `run_benchmark`.
# After each measurement, `run_benchmark` yields all measurements so far.
# If a file of scripts/benchmarks is run as a program, it takes one measurement.
FILES = {
    'step': 'step',
    'input': 'input',
    'attention': 'attention',
    'memory': 'memory',
    'decode': 'decode',
    'finetune': 'fine_tuning',
    'infer': 'inference',
    'text_to_text': 'text_to_text',
    'gpt2': 'gpt2',
    'recurrent': 'recurrent',
    'compress': 'compress',
    'arena': 'arena',
}
COMPARE = 'compare'  # the sub-command that measures nothing
WITH_PEERS = ('step', 'attention', 'finetune', 'infer', 'text_to_text', 'gpt2', 'recurrent', 'compress')
# Child processes get these malloc settings of efficient_attention/processes/allocator.py in an environment variable.
KEEP_MEMORY = ':'.join(
    f'glibc.malloc.{name}={value}'
    for name, value in {
        'mmap_max': 0,
        'trim_threshold': -1,
        'top_pad': 256 * 2**20,
        'arena_max': 1,
    }.items()
)


def main() -> None:
    """Runs the benchmark that the command line names, prints a table, and writes the measurements to `--output`."""
    if sys.argv[1:2] == [COMPARE]:
        compare.print_comparison(sys.argv[1:])
        return
    command, benchmark, options = read_command_line()
    if command == 'attention' and options.from_json:
        benchmark.show_saved_report(benchmark.load_saved_figures(options.from_json), options.plot)
    else:
        run_benchmark(command, benchmark, options)


def run_benchmark(command: str, benchmark: ModuleType, options: flags.FlagValues) -> None:
    """Runs a benchmark; after each measurement, rewrites the output file with all measurements so far."""
    report = {'machine': machine(), 'allocator': options.allocator}
    load, cores = report['machine']['load'], report['machine']['cores']
    if load > cores / 2:
        print(f'note: the machine is busy (load {load:.1f} on {cores} cores); these figures are not comparable')
    run = functools.partial(run_measurement_process, allocator=options.allocator)
    for figures in benchmark.measure(options, run):
        if options.output:
            named = figures if command in ('step', 'input') else {command: figures}
            write_atomically(options.output, json.dumps(report | named, indent=2) + '\n')


# ---- These functions parse the command line. ----


def read_command_line() -> tuple[str, ModuleType, flags.FlagValues]:
    """Parses the command line; returns the sub-command, the benchmark's module, and the values of the flags."""
    command, arguments = split_subcommand(sys.argv, (*FILES, COMPARE))
    benchmark = importlib.import_module(f'scripts.benchmarks.{FILES[command]}')
    options = define_flags(command, benchmark)
    parse_flags(arguments, options=options, command=command)
    benchmark.check_flags(options)
    check_flags(command, benchmark, options)
    return command, benchmark, options


def define_flags(command: str, benchmark: ModuleType) -> flags.FlagValues:
    """Defines the command-line flags of one benchmark, and returns them."""
    options = flags.FlagValues()
    benchmark.define_flags(options)
    if command in WITH_PEERS:
        define_path(
            'peers_python',
            'Python with the peer libraries, made by `make peers`.',
            ROOT / '.venv-peers/bin/python',
            options,
        )
    flags.DEFINE_enum('allocator', 'keep', ('keep', 'default'), 'Memory allocator settings.', flag_values=options)
    define_output('File for the figures, as JSON.', options=options)
    return options


def check_flags(command: str, benchmark: ModuleType, options: flags.FlagValues) -> None:
    """Raises InputError if an output folder or the Python environment of other libraries does not exist."""
    for path in (options[name].value for name in ('output', 'plot') if name in options):
        if path and not path.parent.is_dir():
            raise InputError(f'{path}: there is no folder {path.parent}')
    if needs_peer_environment(command, benchmark, options) and not options.peers_python.exists():
        raise InputError(f'{options.peers_python} does not exist: run `make peers` first, or give --peers_python')


def needs_peer_environment(command: str, benchmark: ModuleType, options: flags.FlagValues) -> bool:
    """Returns whether a benchmark also measures other libraries, which need a separate Python environment."""
    if command == 'attention':
        return not options.from_json and any(benchmark.SIDES[name].peer for name in options.sides)
    return command in WITH_PEERS


# ---- These functions run child processes and describe the machine. ----


def run_measurement_process(command: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
    """Runs a child process that takes one measurement; returns the JSON object on the last line of its output.

    If the child process fails, this process exits with an error.
    """
    environment = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}
    if allocator == 'keep':
        environment['GLIBC_TUNABLES'] = KEEP_MEMORY
    words = command_tied_to_parent([*command, json.dumps(shape)])
    child = subprocess.run(words, env=environment, capture_output=True, text=True)
    if child.returncode:
        sys.exit(f'error: {command[-1]} failed:\n{child.stderr[-3000:]}')
    return json.loads(child.stdout.splitlines()[-1])


def machine() -> dict[str, Any]:
    """Describes this machine for a benchmark report: platform, versions, date, number of cores, and load.

    The load is the mean number of running processes in the last minute.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    system = {'platform': platform.platform(), 'python': platform.python_version()}
    system |= {'jax': importlib.metadata.version('jax'), 'date': datetime.date.today().isoformat()}
    return system | {'cores': cores, 'load': os.getloadavg()[0]}


if __name__ == '__main__':
    run_command(main)
