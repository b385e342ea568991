"""Tests two processes of which one has a full disk: both report it, and every saved checkpoint stays."""

import re
from pathlib import Path

import pytest

from efficient_attention.errors import ExitCode
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from tests.topologies import Ended, Topology, finish, losses, start
from tests.training.tiny_run import write_corpus

FAILURE = r'checkpoint step 4 not saved in .*: File too large \(.*the last good one is step 2'
# From its fourth step on, the second process can write only 100 bytes into a file, which imitates a full disk.
FULL = """
import resource
import jax
from efficient_attention.programs import train as entry
from efficient_attention.commands.command_line import run_command
from efficient_attention.training.loop import Trainer

next_batch, taken = Trainer.next_batch, []

def next_batch_or_full(trainer, batches):
    taken.append(trainer)
    if len(taken) == 4:
        trainer.checkpoints.wait_until_saved()
        if jax.process_index() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return next_batch(trainer, batches)

Trainer.next_batch = next_batch_or_full
run_command(entry.main)
"""


def run_two(workdir: Path, *words: str) -> list[Ended]:
    """Runs six steps in two processes, saves every second step, and returns how both processes ended."""
    fields = {'data.source': write_corpus(workdir.parent), 'data.cache': workdir.parent / 'cache'}
    fields |= {'train.steps': 6, 'train.log_every_steps': 1, 'checkpoint.every_steps': 2}
    arguments = ['--config=tests/training/tiny_run.py', *(f'--config.{name}={value}' for name, value in fields.items())]
    return finish(start(Topology(2, 1), [*arguments, f'--workdir={workdir}'], program=words or ('train.py',)))


@pytest.mark.slow
def test_a_full_disk_of_one_is_named_by_both_and_both_go_on(tmp_path: Path):
    workdir = tmp_path / 'run'
    other, full = run_two(workdir, '-c', FULL)
    assert (other.code, full.code) == (ExitCode.WATCHDOG, ExitCode.FAILED), other.errors + full.errors
    ends = [re.findall(r'^error: (.*)$', one.errors, re.MULTILINE) for one in (other, full)]
    assert [len(lines) for lines in ends] == [1, 1] and 'Traceback' not in other.errors + full.errors
    assert re.match(rf'process 1 \(.*\) failed: {FAILURE}', ends[0][0]) and re.match(FAILURE, ends[1][0])
    assert CheckpointReader(workdir).complete_steps() == [2]
    assert [one.code for one in run_two(workdir)] == [one.code for one in run_two(tmp_path / 'unbroken')] == [0, 0]
    assert losses(workdir) == losses(tmp_path / 'unbroken')
