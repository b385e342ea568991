"""What keeping freed memory costs and saves: seconds a training step, resident memory, with and without its limit.

    python scripts/benchmarks/kept_memory.py [--length 512] [--rows 8] [--steps 20] [--rounds 3]

Three ways take turns, each in a process of its own: `default` (glibc's own settings), `unlimited` (freed memory is
kept) and `limited` (kept up to the limit of efficient_attention/processes/allocator.py, which acts all the time, where
train.py lets it act below half of the memory unused). The model is BERT-base. The last line is one JSON object.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_length
from efficient_attention.errors import RunError
from efficient_attention.processes.allocator import SWITCH
from efficient_attention.processes.child_process import child_command

ROOT = Path(__file__).resolve().parents[2]
WAYS = ('default', 'unlimited', 'limited')
SHAPE = {'vocab_size': 30522, 'layers': 12, 'width': 768, 'heads': 12, 'dropout_rate': 0.1, 'warmup_steps': 3}
# Takes the steps of step.py with the allocator of train.py, and adds what is resident at the end.
PROGRAM = """
import json, sys
from efficient_attention.processes import allocator
from efficient_attention.processes.allocator import keep_freed_memory, resident_bytes
allocator.RESERVE = 1.0  # the limit acts whatever is unused
keep_freed_memory()
from scripts.benchmarks.step import measure_shape
print(json.dumps(measure_shape(json.loads(sys.argv[1])) | {'resident_bytes': resident_bytes()}))
"""


def main() -> None:
    """Reads the flags, measures and prints a line for each way and the summary."""
    options = flags.FlagValues()
    define_length(512, 'Tokens of a row.', options)
    for name, default, meaning in (
        ('rows', 8, 'Of a step.'),
        ('steps', 20, 'That are timed.'),
        ('rounds', 3, 'Turns.'),
    ):
        flags.DEFINE_integer(name, default, meaning, flag_values=options)
    parse_flags(sys.argv, options=options)
    shape = SHAPE | {'length': options.length, 'rows': options.rows, 'steps': options.steps}
    shape['masked'] = round(0.15 * options.length)
    children: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in sorted(WAYS, reverse=number % 2 == 1):
            children[way].append(figures_of(way, shape))
    summary = {way: medians(children[way]) for way in WAYS}
    for way, row in summary.items():
        print(f'{way:>10} ' + '  '.join(f'{name} {value:.4g}' for name, value in row.items()))
    print(json.dumps({'shape': shape, 'ways': summary}))


def figures_of(way: str, shape: dict[str, Any]) -> dict[str, Any]:
    """What a process that works this way prints on its last line."""
    environment = os.environ | {
        'PYTHONPATH': str(ROOT),
        'JAX_PLATFORMS': 'cpu',
        'CUDA_VISIBLE_DEVICES': '',
        SWITCH: way,
    }
    command = child_command([sys.executable, '-c', PROGRAM, json.dumps(shape)])
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RunError(f'{way}: {child.stderr[-2000:]}')
    return json.loads(child.stdout.splitlines()[-1])


def medians(children: list[dict[str, Any]]) -> dict[str, float]:
    """Of the processes that worked one way: seconds of the median step, GB at the peak and at the end."""
    return {
        'step_seconds': statistics.median(statistics.median(child['seconds']) for child in children),
        'peak_gb': statistics.median(child['peak_bytes'] for child in children) / 1e9,
        'resident_gb': statistics.median(child['resident_bytes'] for child in children) / 1e9,
    }


if __name__ == '__main__':
    run_command(main)
