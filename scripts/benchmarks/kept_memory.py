"""Measures training time and resident memory when malloc keeps freed memory, either without a limit or up to a limit.

    python scripts/benchmarks/kept_memory.py [--length 512] [--rows 8] [--steps 20] [--rounds 3]

Three allocator settings take turns, each in a separate process: `default` (glibc's settings), `unlimited` (freed memory
is kept) and `limited` (kept up to the limit of efficient_attention/processes/allocator.py). Here the limit always acts;
in train.py it only acts when less than half of the memory is unused. The model is BERT-base. The last line of output is
one JSON object.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

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
from efficient_attention.processes.child_process import command_tied_to_parent

ROOT = Path(__file__).resolve().parents[2]
WAYS = ('default', 'unlimited', 'limited')
SHAPE = {'vocab_size': 30522, 'layers': 12, 'width': 768, 'heads': 12, 'dropout_rate': 0.1, 'warmup_steps': 3}
# This program runs the training steps of step.py with train.py's allocator, and reports the resident memory at the end.
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
    """Reads the flags, measures each allocator setting, and prints a line per setting and one JSON object."""
    options = flags.FlagValues()
    define_length(512, 'Tokens per row.', options)
    for name, default, meaning in (
        ('rows', 8, 'Rows per step.'),
        ('steps', 20, 'Timed steps.'),
        ('rounds', 3, 'Rounds.'),
    ):
        flags.DEFINE_integer(name, default, meaning, flag_values=options)
    parse_flags(sys.argv, options=options)
    shape = SHAPE | {'length': options.length, 'rows': options.rows, 'steps': options.steps}
    shape['masked'] = round(0.15 * options.length)
    children: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in sorted(WAYS, reverse=number % 2 == 1):
            children[way].append(run_measurement_process(way, shape))
    summary = {way: medians(children[way]) for way in WAYS}
    for way, row in summary.items():
        print(f'{way:>10} ' + '  '.join(f'{name} {value:.4g}' for name, value in row.items()))
    print(json.dumps({'shape': shape, 'ways': summary}))


def run_measurement_process(way: str, shape: dict[str, Any]) -> dict[str, Any]:
    """Runs a child process with one allocator setting; returns the measurements, the last line of its output."""
    environment = os.environ | {
        'PYTHONPATH': str(ROOT),
        'JAX_PLATFORMS': 'cpu',
        'CUDA_VISIBLE_DEVICES': '',
        SWITCH: way,
    }
    command = command_tied_to_parent([sys.executable, '-c', PROGRAM, json.dumps(shape)])
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RunError(f'{way}: {child.stderr[-2000:]}')
    return json.loads(child.stdout.splitlines()[-1])


def medians(children: list[dict[str, Any]]) -> dict[str, float]:
    """Returns medians over several processes: seconds per step, peak memory in GB, and resident GB at the end."""
    return {
        'step_seconds': statistics.median(statistics.median(child['seconds']) for child in children),
        'peak_gb': statistics.median(child['peak_bytes'] for child in children) / 1e9,
        'resident_gb': statistics.median(child['resident_bytes'] for child in children) / 1e9,
    }


if __name__ == '__main__':
    run_command(main)
