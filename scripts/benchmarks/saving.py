"""Measures the cost of checkpoints: how long a save delays training, and how long a run takes to resume.

    python scripts/benchmarks/saving.py --output saving.json
    python scripts/benchmarks/saving.py --layers 12 --width 768 --rows 8 --length 512 --folder /mnt/disk

A save copies the state. While training continues, the save writes the copy, flushes it to disk and adds checksums. The
cost of a save is the time of all steps until it is complete, minus the time of as many steps without a save. The share
is the cost relative to a run with a save every `--every_steps` steps. The time to resume is from the start of train.py
to the end of its first step, with the quickstart's config and a prepared corpus.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_output, define_path
from efficient_attention.errors import RunError
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.child_process import command_tied_to_parent

ROOT = Path(__file__).resolve().parents[2]
SIZES = {'layers': 4, 'width': 256, 'heads': 4, 'rows': 32, 'length': 128, 'vocab_size': 8192}
COUNTS = {'trials': 5, 'block': 20, 'every_steps': 1000}
POLL_SECONDS = 0.02


def main() -> None:
    """Reads the flags, measures saving and resuming, and prints and writes the measurements."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    tune_allocator()
    shape = {name: options[name].value for name in SIZES} | {'masked': 20, 'dropout_rate': 0.1}
    with tempfile.TemporaryDirectory(prefix='saving-', dir=options.folder) as folder:
        found = {
            'cores': len(os.sched_getaffinity(0)),
            'load': os.getloadavg()[0],
            'shape': shape,
            'save': measure_saves(Path(folder), shape, options.trials, options.block, options.every_steps),
            'resume': measure_resume(Path(folder)),
        }
    print(json.dumps(found, indent=2))
    if options.output:
        write_atomically(options.output, json.dumps(found, indent=2) + '\n')


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_output('File for the figures, as JSON.', options=options)
    define_path('folder', 'Folder on the disk to save to; the temporary folder by default.', options=options)
    meanings = {
        'trials': 'Saves to measure.',
        'block': 'Steps before each save.',
        'every_steps': 'Steps between saves.',
    }
    for name, default in (SIZES | COUNTS).items():
        meaning = meanings.get(name, 'Size of the model or batch.')
        flags.DEFINE_integer(name, default, meaning, lower_bound=1, flag_values=options)
    return options


def measure_saves(folder: Path, shape: dict[str, Any], trials: int, block: int, every_steps: int) -> dict[str, float]:
    """Measures saves during training: seconds per step, seconds that a save delays training, seconds until it is done.

    The results are medians over saves.
    """
    import jax

    from efficient_attention.config.checkpoint import CheckpointConfig
    from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
    from scripts.benchmarks.step import make_project_training_step, masked_batches

    take_step, state = make_project_training_step(shape)
    batches = masked_batches(shape, 8)
    plain, taken, sealed = [], [], []
    with CheckpointWriter(folder / 'run', CheckpointConfig(keep=1)) as checkpoints:
        for trial in range(trials + 1):  # the first trial compiles and warms up the writer, so it does not count
            start = time.perf_counter()
            for number in range(block):
                state, metrics = take_step(state, batches[number % len(batches)])
                jax.block_until_ready(metrics)
            step_seconds = (time.perf_counter() - start) / block
            start, steps = time.perf_counter(), 0
            checkpoints.save(trial + 1, state, record={})
            while not checkpoints.is_saved(trial + 1):
                state, metrics = take_step(state, batches[steps % len(batches)])
                jax.block_until_ready(metrics)
                steps += 1
            seconds = time.perf_counter() - start
            if trial:
                plain.append(step_seconds)
                taken.append(seconds - steps * step_seconds)
                sealed.append(seconds)
    return {
        'state_megabytes': sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6,
        'step_seconds': statistics.median(plain),
        'save_seconds_of_training': statistics.median(taken),
        'seconds_until_sealed': statistics.median(sealed),
        'share_of_step_time': statistics.median(taken) / (every_steps * statistics.median(plain)),
    }


def measure_resume(folder: Path) -> dict[str, float]:
    """Measures how long train.py takes to resume a run: seconds until the state is loaded, and until its next step."""
    train(folder, 20)
    start = time.perf_counter()
    process = start_training_process(folder, 30)
    assert process.stderr
    said = next((time.perf_counter() for line in process.stderr if 'resumed at step 20' in line), None)
    while '"step": 21,' not in (folder / 'resumed' / 'metrics.jsonl').read_text(encoding='utf-8'):
        if process.poll() is not None:
            break
        time.sleep(POLL_SECONDS)
    stepped = time.perf_counter()
    process.stderr.read()
    if process.wait() or said is None:
        raise RunError('train.py failed, or did not resume at step 20')
    return {'seconds_until_restored': said - start, 'seconds_until_first_step': stepped - start}


def train(folder: Path, steps: int) -> None:
    """Runs the quickstart's training to its last step; raises RunError if training fails."""
    process = start_training_process(folder, steps)
    _, errors = process.communicate()
    if process.returncode:
        raise RunError(f'train.py ended with code {process.returncode}: {errors.splitlines()[-1:]}')


def start_training_process(folder: Path, steps: int) -> 'subprocess.Popen[str]':
    """Starts train.py with the quickstart's config, so that it logs every step and resumes an existing run."""
    fields = {'optimizer.schedule': 'constant', 'train.steps': steps, 'train.log_every_steps': 1}
    command = [sys.executable, 'train.py', '--config', 'configs/quickstart.py', '--workdir', str(folder / 'resumed')]
    command += [f'--config.{name}={value}' for name, value in fields.items()]
    return subprocess.Popen(
        command_tied_to_parent(command), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


if __name__ == '__main__':
    run_command(main)
