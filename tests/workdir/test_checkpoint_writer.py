"""Tests saving: asynchronous, with the configured steps kept, one trainer at a time, and every failure reported."""

import errno
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir import checkpoint_writer
from efficient_attention.workdir.checkpoint_reader import UNSEALED
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter, SaveError
from tests.workdir.test_checksums import add, delete, flip, swap, truncate, zero

BEST = CheckpointConfig(keep=2, keep_best=1, best_metric='loss')


def make_state(value: float, shape: tuple[int, ...] = (4, 8)) -> dict:
    return {'params': {'kernel': jnp.full(shape, value)}, 'step': jnp.int32(value)}


def abstract(state: dict) -> dict:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def save_all(workdir, config: CheckpointConfig, losses: dict[int, float | None]) -> None:
    with CheckpointWriter(workdir, config) as checkpoints:
        for step, loss in losses.items():
            metrics = None if loss is None else {'loss': loss}
            checkpoints.save(step, make_state(step), record={}, metrics=metrics)


@pytest.fixture
def no_space():
    """Returns a function after whose call no file grows beyond 64 KiB: as on a full disk, a write fails in its
    middle.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def random_state() -> dict:
    return {'params': {'kernel': jnp.asarray(np.random.default_rng(0).standard_normal(2**18), jnp.float32)}}


def test_the_newest_and_the_best_are_kept_and_nothing_else(tmp_path):
    save_all(tmp_path, BEST, {1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 4.0, 6: float('nan')})
    with CheckpointWriter(tmp_path, BEST) as checkpoints:
        assert checkpoints.reader.complete_steps() == [2, 5, 6]
    assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir()) == ['2', '5', '6']


def test_what_is_best_is_remembered_over_a_restart(tmp_path):
    save_all(tmp_path, BEST, {1: 1.0, 2: 3.0})
    save_all(tmp_path, BEST, {3: 2.0, 4: 2.0, 5: 2.0})
    with CheckpointWriter(tmp_path, BEST) as checkpoints:
        assert checkpoints.reader.complete_steps() == [1, 4, 5]
        assert checkpoints.reader.best_step('loss') == 1


def test_a_step_that_was_evaluated_after_its_save_may_be_the_best(tmp_path):
    """A stop in the middle of an evaluation leaves such a step; the next start then makes up for the evaluation."""
    save_all(tmp_path, BEST, {1: 3.0, 2: None})
    (tmp_path / 'metrics.jsonl').write_text('{"step": 2, "split": "train", "loss": 9}\n')
    with CheckpointWriter(tmp_path, BEST) as checkpoints:
        checkpoints.write_evaluation_metrics(2, {'loss': 1.0})
        checkpoints.write_evaluation_metrics(7, {'loss': 0.0})  # is not saved
        for step in (3, 4, 5):
            checkpoints.save(step, make_state(step), record={}, metrics={'loss': 2.0})
    assert checkpoints.reader.complete_steps() == [2, 4, 5]
    assert checkpoints.reader.best_step('loss') == 5
    with (tmp_path / 'metrics.jsonl').open('a') as file:
        file.write('{"step": 2, "split": "held_out", "loss": 1.0}\n')
    assert checkpoints.reader.best_step('loss') == 2
    assert checkpoints.reader.metrics_of_step(2) == {'loss': 1.0}
    save_all(tmp_path, BEST, {6: 3.0, 7: 3.0})
    assert checkpoints.reader.complete_steps() == [2, 6, 7]


def test_what_was_the_best_before_such_a_step_is_removed(tmp_path):
    """The former best step goes at once, because no other save may follow: the evaluated step may be the last one."""
    config = CheckpointConfig(keep=1, keep_best=1, best_metric='loss')
    save_all(tmp_path, config, {1: 3.0, 2: None})
    with CheckpointWriter(tmp_path, config) as checkpoints:
        assert checkpoints.reader.complete_steps() == [1, 2]
        checkpoints.write_evaluation_metrics(2, {'loss': 1.0})
        assert checkpoints.reader.complete_steps() == [2]


def test_the_highest_is_best_in_mode_max(tmp_path):
    config = CheckpointConfig(keep=1, keep_best=1, best_metric='loss', best_mode='max')
    save_all(tmp_path, config, {1: 1.0, 2: 3.0, 3: 2.0, 4: 0.0})
    with CheckpointWriter(tmp_path, config) as checkpoints:
        assert checkpoints.reader.complete_steps() == [2, 4]


def test_without_a_metric_only_the_newest_are_kept(tmp_path):
    save_all(tmp_path, CheckpointConfig(keep=2), {step: 1.0 for step in range(1, 6)})
    with CheckpointWriter(tmp_path, CheckpointConfig(keep=2)) as checkpoints:
        assert checkpoints.reader.complete_steps() == [4, 5]


def test_a_best_metric_that_the_evaluation_does_not_give_is_refused(tmp_path):
    with CheckpointWriter(tmp_path, BEST) as checkpoints:
        with pytest.raises(InputError, match="best_metric is 'loss'; known: accuracy"):
            checkpoints.save(1, make_state(1), record={}, metrics={'accuracy': 0.5})


def test_a_step_without_checksums_or_with_damage_is_set_aside_and_saved_anew(tmp_path, caplog):
    save_all(tmp_path, CheckpointConfig(), {1: None, 2: None, 3: None})
    folder = tmp_path / 'checkpoints'
    (folder / '3' / 'seal-0-of-1.sha256').unlink()
    (folder / '2' / 'state' / '_METADATA').write_text('{}')
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        assert checkpoints.newest and checkpoints.newest.step == 1
        assert sorted(path.name for path in (folder / 'damaged').iterdir()) == ['2', '3']
        checkpoints.save(3, make_state(7), record={})
    assert caplog.messages == [
        f'checkpoint {folder}/2 is skipped: state/_METADATA is not what was written',
        f'checkpoint {folder}/3 is skipped: it lacks checksums: seal-0-of-*.sha256 is missing, {UNSEALED}',
    ]
    assert checkpoints.reader.complete_steps() == [1, 3]
    assert checkpoints.reader.restore(abstract(make_state(1))).state['step'] == 7


@pytest.mark.parametrize('kind', [flip, truncate, zero, delete, swap, add])
def test_every_damage_of_a_checkpoint_is_named_with_step_and_file_before_a_step_is_trained(tmp_path, kind, caplog):
    save_all(tmp_path / 'whole', CheckpointConfig(), {1: None, 2: None})
    for seed in range(5):
        caplog.clear()
        workdir = tmp_path / str(seed)
        shutil.copytree(tmp_path / 'whole', workdir)
        folder = workdir / 'checkpoints' / '2'
        name = kind(folder, random.Random(seed)).relative_to(folder).as_posix()
        with CheckpointWriter(workdir, CheckpointConfig()) as checkpoints:
            assert checkpoints.newest and checkpoints.newest.step == 1 and checkpoints.reader.written_steps() == [1]
        (line,) = caplog.messages
        is_unsealed = kind is delete and name.startswith('seal-')
        fault = 'it lacks checksums: seal-0-of-*.sha256 is missing' if is_unsealed else f'{name} is '
        assert line.startswith(f'checkpoint {folder} is skipped: {fault}')


def test_checksums_that_cannot_be_written_are_a_failed_save(tmp_path, failing_seal):
    failing_seal()
    with pytest.raises(SaveError, match=r'^checkpoint step 1 not saved in .*: No space left on device'):
        save_all(tmp_path, CheckpointConfig(), {1: None})
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        assert checkpoints.newest is None


def test_a_step_that_is_saved_already_is_left_as_it_is(tmp_path):
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, make_state(1), record={})
        checkpoints.save(1, make_state(7), record={})
        checkpoints.wait_until_saved()
        assert checkpoints.reader.restore(abstract(make_state(1))).state['step'] == 1


def test_donated_arrays_do_not_change_what_is_saved(tmp_path):
    sharding = NamedSharding(jax.make_mesh((8,), ('data',)), PartitionSpec('data'))
    array = jax.device_put(jnp.zeros((8, 2**16)), sharding)
    advance = jax.jit(lambda array: array + 1, donate_argnums=0)
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        target = abstract({'array': array})
        for step in (0, 1, 2):
            checkpoints.save(step, {'array': array}, record={})
            array = advance(array)
        checkpoints.wait_until_saved()
        for step in (0, 1, 2):
            np.testing.assert_array_equal(checkpoints.reader.restore(target, step).state['array'], float(step))


def test_a_failed_save_is_one_line_with_step_and_reason_and_the_old_step_stays(tmp_path, no_space, capfd):
    state = random_state()
    with pytest.raises(SaveError) as caught:
        with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
            checkpoints.save(1, state, record={})
            checkpoints.wait_until_saved()
            no_space()
            checkpoints.save(2, state, record={})
    folder = tmp_path / 'checkpoints'
    assert str(caught.value).startswith(f'checkpoint step 2 not saved in {folder}: File too large (1.0 MB to write, ')
    assert '\n' not in str(caught.value)
    assert checkpoints.reader.complete_steps() == [1]
    assert 'Traceback' not in capfd.readouterr().err


@pytest.fixture
def failing_seal(monkeypatch):
    """Returns a function that makes the writing of checksums fail at its first call and work again at its second."""
    real = checkpoint_writer.write_checksums

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    yield lambda: monkeypatch.setattr(
        checkpoint_writer, 'write_checksums', fail if checkpoint_writer.write_checksums is real else real
    )


def wait_for(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    latest = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < latest
        time.sleep(0.01)


def test_a_save_that_fails_in_the_background_is_said_at_once_and_leaves_nothing(tmp_path, no_space, caplog):
    state, limits = random_state(), resource.getrlimit(resource.RLIMIT_FSIZE)
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, record={})
        checkpoints.wait_until_saved()
        no_space()
        checkpoints.save(2, state, record={})
        wait_for(lambda: bool(caplog.messages))  # nobody asks
        (line,) = caplog.messages
        assert line.startswith(f'checkpoint step 2 not saved in {tmp_path}/checkpoints: File too large (1.0 MB to ')
        assert line.endswith('; the last good one is step 1; training goes on, to the next save')
        wait_for(lambda: [path.name for path in checkpoints.reader.folder.iterdir()] == ['1'])
        checkpoints.raise_if_save_failed()
        checkpoints.save(3, state, record={})
        with pytest.raises(SaveError, match='step 3 not saved'):
            checkpoints.wait_until_saved()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        checkpoints.save(4, state, record={})
    assert caplog.messages[1:] == [f'checkpoint step 4 is saved in {tmp_path}/checkpoints: saving works again']
    assert checkpoints.reader.complete_steps() == [1, 4]


def test_a_failed_save_stops_the_run_where_it_shall(tmp_path, failing_seal, caplog):
    with pytest.raises(SaveError, match='^checkpoint step 1 not saved'):
        with CheckpointWriter(tmp_path, CheckpointConfig(when_save_fails='stop')) as checkpoints:
            failing_seal()
            checkpoints.save(1, make_state(1), record={})
            wait_for(lambda: bool(caplog.messages))
            assert caplog.messages[0].endswith('there is no other one; the run stops')
            checkpoints.raise_if_save_failed()
            raise AssertionError('it goes on')
    assert list(checkpoints.reader.folder.iterdir()) == []


def test_the_old_step_is_deleted_after_the_new_one_has_checksums(tmp_path, failing_seal):
    with pytest.raises(SaveError, match='the last good one is step 1$'):
        with CheckpointWriter(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
            checkpoints.save(1, make_state(1), record={})
            checkpoints.wait_until_saved()
            failing_seal()
            checkpoints.save(2, make_state(2), record={})
    assert checkpoints.reader.complete_steps() == [1]
    failing_seal()
    save_all(tmp_path, CheckpointConfig(keep=1), {3: None})
    assert [path.name for path in checkpoints.reader.folder.iterdir()] == ['3']


def test_what_a_killed_run_did_not_remove_goes_when_the_run_asks_and_not_before(tmp_path):
    save_all(tmp_path, CheckpointConfig(keep=3), {1: None, 2: None, 3: None})
    with CheckpointWriter(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
        # opening removes nothing, as the run may still be refused
        assert checkpoints.reader.complete_steps() == [1, 2, 3]
        checkpoints.remove_superseded()
        assert checkpoints.reader.complete_steps() == [3]


def test_a_folder_that_has_gone_is_made_again_but_not_a_workdir(tmp_path, caplog):
    workdir = tmp_path / 'run'
    with pytest.raises(SaveError, match='step 3 not saved in .*: No such file .* is gone.; there is no other one$'):
        with CheckpointWriter(workdir, CheckpointConfig()) as checkpoints:
            shutil.rmtree(checkpoints.reader.folder)
            checkpoints.save(1, make_state(1), record={})
            checkpoints.wait_until_saved()
            assert checkpoints.reader.complete_steps() == [1]
            workdir.rename(tmp_path / 'elsewhere')
            checkpoints.save(2, make_state(2), record={})
            assert 'step 2 not saved' in caplog.messages[0] and not workdir.exists()
            checkpoints.save(3, make_state(3), record={})


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_folder_that_may_not_be_written_is_said(tmp_path, caplog):
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.reader.folder.chmod(0o500)
        checkpoints.save(1, make_state(1), record={})
        assert 'Permission denied' in caplog.messages[0]
        checkpoints.reader.folder.chmod(0o700)
        checkpoints.save(2, make_state(2), record={})
    assert checkpoints.reader.complete_steps() == [2]


def test_an_error_that_ends_the_run_is_not_hidden_by_a_failed_save(tmp_path, no_space, capfd):
    with pytest.raises(KeyboardInterrupt):
        with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
            no_space()
            checkpoints.save(1, random_state(), record={})
            raise KeyboardInterrupt
    assert 'error: checkpoint step 1 not saved' in capfd.readouterr().err


def test_a_second_trainer_is_refused_until_the_first_has_closed(tmp_path):
    with CheckpointWriter(tmp_path, CheckpointConfig()):
        with pytest.raises(InputError, match='in use by another training run'):
            CheckpointWriter(tmp_path, CheckpointConfig())
    CheckpointWriter(tmp_path, CheckpointConfig()).close()


def test_orbax_may_log_again_after_closing(tmp_path):
    filters = list(logging.getLogger('absl').filters)
    CheckpointWriter(tmp_path, CheckpointConfig()).close()
    assert logging.getLogger('absl').filters == filters


KILLED = """
    import os, pathlib, signal, sys
    import jax.numpy as jnp
    from efficient_attention.config.checkpoint import CheckpointConfig
    from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
    checkpoints = CheckpointWriter(pathlib.Path(sys.argv[1]), CheckpointConfig())
    checkpoints.save(1, {'step': jnp.int32(1)}, record={})
    checkpoints.wait_until_saved()
    checkpoints.save(2, {'step': jnp.zeros(2**22)}, record={})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_killed_while_saving_leaves_its_last_step_and_no_lock(tmp_path):
    found = subprocess.run([sys.executable, '-c', textwrap.dedent(KILLED), str(tmp_path)], check=False)
    assert found.returncode == -9
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        assert checkpoints.reader.complete_steps()[0] == 1
        checkpoints.save(3, make_state(3), record={})
        checkpoints.wait_until_saved()
        names = {path.name for path in checkpoints.reader.folder.iterdir()}
    assert names in ({'1', '3'}, {'1', '2', '3'})  # the unfinished folder is gone
