"""Simulates power cuts and checks that the newest checkpoint reported as saved survives.

    python scripts/stress/power_cuts.py                       # five cuts at each of six ages; needs root and Linux
    python scripts/stress/power_cuts.py --control --trials 1  # without flushing: shows what cuts destroy

Each trial has a separate ext4 file system, in a file that is mounted through a loop device. The project's checkpoint
writer saves three checkpoints there and keeps one. Some seconds (--ages) after the last checkpoint is reported saved,
the file is copied. Data that Linux holds in memory, not yet written to the device, is not in the copy. Then the copy is
mounted, so ext4 replays its journal as after a power cut. The reported step must be there bit by bit, and the lines of
metrics.jsonl up to it. Losses inside a disk, of data that it has confirmed, are not simulated.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # first, so that a stop during the slow imports is handled

import contextlib
import dataclasses
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.errors import InputError, RunError

STEPS = (10, 20, 30)
AGES = ('0.1', '3', '8', '15', '25', '40')  # seconds; ext4 writes its journal every 5, Linux old content after 30
IMAGE_BYTES = 96 * 2**20
STATE_FLOATS = 2**20
POLL_SECONDS = 0.01


@dataclasses.dataclass
class Trial:
    """A file system, and the time at which its newest checkpoint was reported saved."""

    folder: Path
    age: float  # seconds from the report to the power cut
    seed: int
    reported: float = 0.0  # `time.monotonic` of the report
    cut_at: float = 0.0

    @property
    def image(self) -> Path:
        """The file of the file system."""
        return self.folder / 'image'

    @property
    def copy(self) -> Path:
        """The copy of the file at the power cut."""
        return self.folder / 'after'


def main() -> None:
    """Reads the flags, runs the trials in rounds of one per age, and prints what survived."""
    options = flags.FlagValues()
    flags.DEFINE_list('ages', list(AGES), 'Seconds from the report of the save to the cut.', flag_values=options)
    flags.DEFINE_integer('trials', 5, 'Cuts per age.', lower_bound=1, flag_values=options)
    flags.DEFINE_bool('control', False, 'Flush nothing, to show what is lost without flushing.', flag_values=options)
    parse_flags(sys.argv, options=options)
    ages = read_ages(options.ages)
    check_system()
    if options.control:
        os.fsync = lambda descriptor: None  # noqa: ARG005
    found = [trial for number in range(options.trials) for trial in run_round(ages, number)]
    for age in ages:
        ends = [fault for trial, fault in found if trial.age == age]
        print(f'{age:g} s after the report: {ends.count("")} of {len(ends)} come back')
    lost = sum(1 for _, fault in found if fault)
    print(f'{len(found) - lost} of {len(found)} come back')
    if lost and not options.control:
        raise RunError(f'{lost} of {len(found)} checkpoints that were reported saved did not come back')


def read_ages(words: Sequence[str]) -> list[float]:
    """Returns the ages of --ages; raises InputError if one is not a number of seconds."""
    try:
        ages = [float(word) for word in words]
    except ValueError:
        ages = []
    if not ages or min(ages) < 0:
        raise InputError(f'--ages is {",".join(words)!r}; it must be seconds, separated by commas')
    return ages


def check_system() -> None:
    """Raises InputError if loop devices cannot be mounted."""
    if sys.platform != 'linux' or os.geteuid() != 0:
        raise InputError('simulated power cuts mount file systems: they need Linux and root')
    missing = [name for name in ('mkfs.ext4', 'mount', 'umount') if not shutil.which(name)]
    if missing:
        raise InputError(f'simulated power cuts need the programs of ext4 and mount; missing: {", ".join(missing)}')


def run_round(ages: Sequence[float], number: int) -> list[tuple[Trial, str]]:
    """Runs one trial per age at the same time; returns each with its fault after the cut ('' = none)."""
    with tempfile.TemporaryDirectory(prefix='power-cuts-') as name, contextlib.ExitStack() as mounts:
        trials = [Trial(Path(name) / f'{age:g}', age, 1000 * number + place) for place, age in enumerate(ages)]
        for trial in sorted(trials, key=lambda trial: -trial.age):  # the last trial saved is the first one cut
            save_and_report(trial, mounts)
        for trial in sorted(trials, key=lambda trial: trial.reported + trial.age):
            cut(trial)
        found = [(trial, what_is_wrong(trial)) for trial in trials]
        for trial, fault in found:
            age = trial.cut_at - trial.reported
            print(f'round {number + 1}: cut {age:.1f} s after the report: {fault or "all is there"}', flush=True)
        return found


def save_and_report(trial: Trial, mounts: contextlib.ExitStack) -> None:
    """Creates and mounts the file system, and saves checkpoints on it; waits for each save, as a report does."""
    from efficient_attention.config.checkpoint import CheckpointConfig
    from efficient_attention.workdir.checkpoint_writer import Checkpoints
    from efficient_attention.workdir.metrics import MetricsLog

    trial.folder.mkdir()
    with trial.image.open('wb') as file:
        file.truncate(IMAGE_BYTES)
    run('mkfs.ext4', '-q', str(trial.image))
    workdir = mounts.enter_context(mounted(trial.image, trial.folder / 'before')) / 'run'
    with Checkpoints(workdir, CheckpointConfig(keep=1)) as checkpoints, MetricsLog(workdir) as log:
        for step in STEPS:
            log.write(step, 'train', {'loss': 1 / step})
            checkpoints.save(step, state_of(trial, step), record={'fingerprint': {}})
            checkpoints.wait()
            trial.reported = time.monotonic()


def cut(trial: Trial) -> None:
    """Copies the file system's file at the trial's age; copies again if the file changed meanwhile."""
    while time.monotonic() < trial.reported + trial.age:
        time.sleep(POLL_SECONDS)
    is_torn = True
    while is_torn:
        trial.cut_at = time.monotonic()
        shutil.copyfile(trial.image, trial.copy)
        is_torn = not filecmp.cmp(trial.image, trial.copy, shallow=False)


def what_is_wrong(trial: Trial) -> str:
    """Returns what is missing on the file system after the cut; '' if nothing is."""
    import jax
    import numpy as np

    from efficient_attention.workdir.checkpoint_reader import CheckpointReader
    from efficient_attention.workdir.metrics import read_metrics

    with mounted(trial.copy, trial.folder / 'mounted') as folder:
        try:
            expected = state_of(trial, STEPS[-1])
            layout = jax.tree.map(
                lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=one.sharding), expected
            )
            restored = CheckpointReader(folder / 'run').restore(layout)
            lines = [line['step'] for line in read_metrics(folder / 'run')]
        except InputError as error:
            return str(error)
        if restored.step != STEPS[-1]:
            return f'step {restored.step} is the newest; {STEPS[-1]} was reported saved'
        if not jax.tree.all(jax.tree.map(np.array_equal, restored.state, expected)):
            return f'step {restored.step} comes back with other numbers'
        return '' if lines == list(STEPS) else f'metrics.jsonl has the steps {lines}'


def state_of(trial: Trial, step: int) -> dict[str, Any]:
    """Returns the state that a trial saves at a step."""
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng((trial.seed, step))
    return {'params': {'kernel': jnp.asarray(draw.standard_normal(STATE_FLOATS, np.float32))}, 'step': jnp.int32(step)}


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """Yields the folder in which the file system of a file is mounted during the block."""
    folder.mkdir()
    run('mount', '-o', 'loop', str(image), str(folder))
    try:
        yield folder
    finally:
        run('umount', str(folder))


def run(*command: str) -> None:
    """Runs a program; raises RunError with its output if it fails."""
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RunError(f'{" ".join(command)}: {" ".join(found.stderr.split())}')


if __name__ == '__main__':
    run_command(main)
