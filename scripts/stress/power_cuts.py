"""Simulates power cuts, and checks that a checkpoint survives them as soon as a run has reported it as saved.

    python scripts/stress/power_cuts.py                       # five cuts at each of six ages; needs root and Linux
    python scripts/stress/power_cuts.py --control --trials 1  # without flushing: shows what cuts destroy

Each trial has a separate ext4 file system, in a file that is mounted through a loop device. The project's checkpoint
writer saves three checkpoints there and keeps one. Some seconds (--ages) after the last checkpoint is reported saved,
the file is copied. Data that Linux holds in memory, not yet written to the device, is not in the copy. Then the copy is
mounted, so ext4 replays its journal as after a power cut. The reported step must be there bit by bit, and the lines of
metrics.jsonl up to it. Losses inside a disk, of data that it has confirmed, are not simulated.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

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
# Each age is the number of seconds from a save to the power cut.
# The file system ext4 writes its journal every 5 seconds. Linux writes old file content after 30 seconds.
AGES = ('0.1', '3', '8', '15', '25', '40')
IMAGE_BYTES = 96 * 2**20
STATE_FLOATS = 2**20
POLL_SECONDS = 0.01


@dataclasses.dataclass
class PowerCutTrial:
    """One simulated power cut: its file system, and the time from the last save to the cut."""

    folder: Path
    age: float  # seconds from the moment when the checkpoint is reported saved to the power cut
    seed: int
    reported: float = 0.0  # time (`time.monotonic`) at which the checkpoint was reported saved
    cut_at: float = 0.0

    @property
    def disk_image(self) -> Path:
        """The path of the file that contains the file system."""
        return self.folder / 'image'

    @property
    def disk_image_after_cut(self) -> Path:
        """The path of the copy of the file system, made at the power cut."""
        return self.folder / 'after'


def main() -> None:
    """Reads the flags, simulates the power cuts, and prints how many checkpoints survived."""
    options = flags.FlagValues()
    flags.DEFINE_list('ages', list(AGES), 'Seconds from the report of the save to the cut.', flag_values=options)
    flags.DEFINE_integer('trials', 5, 'Cuts per age.', lower_bound=1, flag_values=options)
    flags.DEFINE_bool('control', False, 'Flush nothing, to show what is lost without flushing.', flag_values=options)
    parse_flags(sys.argv, options=options)
    ages = parse_ages(options.ages)
    check_can_mount()
    if options.control:
        os.fsync = lambda descriptor: None  # noqa: ARG005
    found = [trial for number in range(options.trials) for trial in run_trials(ages, number)]
    for age in ages:
        ends = [fault for trial, fault in found if trial.age == age]
        print(f'{age:g} s after the report: {ends.count("")} of {len(ends)} come back')
    lost = sum(1 for _, fault in found if fault)
    print(f'{len(found) - lost} of {len(found)} come back')
    if lost and not options.control:
        raise RunError(f'{lost} of {len(found)} checkpoints that were reported saved did not come back')


def parse_ages(words: Sequence[str]) -> list[float]:
    """Parses --ages, the seconds from a save to a cut; raises InputError if one is not a number of seconds."""
    try:
        ages = [float(word) for word in words]
    except ValueError:
        ages = []
    if not ages or min(ages) < 0:
        raise InputError(f'--ages is {",".join(words)!r}; it must be seconds, separated by commas')
    return ages


def check_can_mount() -> None:
    """Raises InputError if this process cannot mount file systems through loop devices."""
    if sys.platform != 'linux' or os.geteuid() != 0:
        raise InputError('simulated power cuts mount file systems: they need Linux and root')
    missing = [name for name in ('mkfs.ext4', 'mount', 'umount') if not shutil.which(name)]
    if missing:
        raise InputError(f'simulated power cuts need the programs of ext4 and mount; missing: {", ".join(missing)}')


def run_trials(ages: Sequence[float], number: int) -> list[tuple[PowerCutTrial, str]]:
    """Simulates one power cut per age, all at the same time; returns each trial with its fault, '' if none."""
    with tempfile.TemporaryDirectory(prefix='power-cuts-') as name, contextlib.ExitStack() as mounts:
        trials = [PowerCutTrial(Path(name) / f'{age:g}', age, 1000 * number + place) for place, age in enumerate(ages)]
        # The trial with the longest wait saves first, because its power cut comes last.
        for trial in sorted(trials, key=lambda trial: -trial.age):
            save_checkpoints(trial, mounts)
        for trial in sorted(trials, key=lambda trial: trial.reported + trial.age):
            simulate_power_cut(trial)
        found = [(trial, find_checkpoint_fault(trial)) for trial in trials]
        for trial, fault in found:
            age = trial.cut_at - trial.reported
            print(f'round {number + 1}: cut {age:.1f} s after the report: {fault or "all is there"}', flush=True)
        return found


def save_checkpoints(trial: PowerCutTrial, mounts: contextlib.ExitStack) -> None:
    """Creates and mounts the file system of a trial, saves checkpoints on it, and waits until each one is saved."""
    from efficient_attention.config.checkpoint import CheckpointConfig
    from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
    from efficient_attention.workdir.metrics import MetricsLog

    trial.folder.mkdir()
    with trial.disk_image.open('wb') as file:
        file.truncate(IMAGE_BYTES)
    run_program('mkfs.ext4', '-q', str(trial.disk_image))
    workdir = mounts.enter_context(mount_image(trial.disk_image, trial.folder / 'before')) / 'run'
    with CheckpointWriter(workdir, CheckpointConfig(keep=1)) as checkpoints, MetricsLog(workdir) as log:
        for step in STEPS:
            log.write_metrics(step, 'train', {'loss': 1 / step})
            checkpoints.save(step, make_trial_state(trial, step), record={'fingerprint': {}})
            checkpoints.wait_until_saved()
            trial.reported = time.monotonic()


def simulate_power_cut(trial: PowerCutTrial) -> None:
    """Simulates the power cut of a trial: copies its file system, without data that Linux has only in memory.

    If the file system changes during the copy, it is copied again.
    """
    while time.monotonic() < trial.reported + trial.age:
        time.sleep(POLL_SECONDS)
    is_torn = True
    while is_torn:
        trial.cut_at = time.monotonic()
        shutil.copyfile(trial.disk_image, trial.disk_image_after_cut)
        is_torn = not filecmp.cmp(trial.disk_image, trial.disk_image_after_cut, shallow=False)


def find_checkpoint_fault(trial: PowerCutTrial) -> str:
    """Returns what is missing or damaged on the file system after the power cut; '' if everything has survived."""
    import jax
    import numpy as np

    from efficient_attention.workdir.checkpoint_reader import CheckpointReader
    from efficient_attention.workdir.metrics import read_metrics

    with mount_image(trial.disk_image_after_cut, trial.folder / 'mounted') as folder:
        try:
            expected = make_trial_state(trial, STEPS[-1])
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


def make_trial_state(trial: PowerCutTrial, step: int) -> dict[str, Any]:
    """Returns the random training state that a trial saves at a step."""
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng((trial.seed, step))
    return {'params': {'kernel': jnp.asarray(draw.standard_normal(STATE_FLOATS, np.float32))}, 'step': jnp.int32(step)}


@contextlib.contextmanager
def mount_image(image: Path, folder: Path) -> Iterator[Path]:
    """Context in which a file that contains a file system is mounted; yields the mounted folder."""
    folder.mkdir()
    run_program('mount', '-o', 'loop', str(image), str(folder))
    try:
        yield folder
    finally:
        run_program('umount', str(folder))


def run_program(*command: str) -> None:
    """Runs a program; raises RunError with its output if it fails."""
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RunError(f'{" ".join(command)}: {" ".join(found.stderr.split())}')


if __name__ == '__main__':
    run_command(main)
