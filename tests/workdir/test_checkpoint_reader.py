"""Tests that a checkpoint is restored bit by bit on any mesh, and that one clear line refuses whatever does not fit."""

import dataclasses
import json
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import make_mesh, state_shardings
from efficient_attention.training.optimizer import make_optimizer
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.workdir import checksums
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, RestoredCheckpoint
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.metrics import read_metrics
from efficient_attention.workdir.report import write_report
from tests.workdir.test_process_agreement import Processes, processes  # noqa: F401  a fixture among them

FINGERPRINT = {'config': {'model': {'layers': 3}, 'train': {'steps': 10}}, 'data': 'abc'}


def make_params() -> dict:
    draw = np.random.default_rng(0).standard_normal
    tree = {
        'layers': {'up': {'kernel': draw((3, 8, 16)), 'bias': draw((3, 16))}},
        'token': {'embedding': draw((32, 8))},
    }
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def make_state(name: str = 'lamb') -> TrainState:
    optimizer = make_optimizer(OptimizerConfig(name=name), 10, stacked=None)
    state = initial_state(make_params(), optimizer, seed=3)
    opt_state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf), state.opt_state)
    return dataclasses.replace(state, opt_state=opt_state, step=jnp.int32(5))


def on_mesh(state: TrainState, mesh_config: MeshConfig, device_count: int) -> TrainState:
    """Returns the abstract state laid out on the first devices."""
    mesh = make_mesh(mesh_config, jax.devices()[:device_count])
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        state_shardings(state, mesh),
    )


def placed(state: TrainState, layout: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), state, layout)


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """Returns a workdir with steps 2 and 5, saved on 2 x 2 x 2 devices."""
    workdir = tmp_path_factory.mktemp('run')
    layout = on_mesh(make_state(), MeshConfig(data=2, fsdp=2, tensor=2), 8)
    with CheckpointWriter(workdir, CheckpointConfig()) as checkpoints:
        for step, loss in ((2, 1.5), (5, 2.5)):
            record = {'fingerprint': FINGERPRINT, 'note': 'any'}
            metrics = {'loss': loss, 'bad': float('nan')}
            checkpoints.save(step, placed(make_state(), layout), record=record, metrics=metrics)
    return workdir


def same_bits(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ('mesh_config', 'device_count'),
    [(MeshConfig(), 1), (MeshConfig(fsdp=2), 4), (MeshConfig(data=1, tensor=4), 4), (MeshConfig(fsdp=4, tensor=2), 8)],
)
def test_the_whole_state_comes_back_bit_by_bit_on_another_mesh(saved, mesh_config, device_count):
    layout = on_mesh(make_state(), mesh_config, device_count)
    restored = CheckpointReader(saved).restore(layout)
    assert isinstance(restored.state, TrainState)
    same_bits(restored.state, make_state())
    for leaf, like in zip(jax.tree.leaves(restored.state), jax.tree.leaves(layout), strict=True):
        assert leaf.sharding == like.sharding


def test_a_part_of_the_state_is_read_alone(saved):
    layout = on_mesh(make_state(), MeshConfig(), 1)
    restored = CheckpointReader(saved).restore({'params': layout.params, 'step': layout.step})
    same_bits(restored.state, {'params': make_params(), 'step': jnp.int32(5)})


def test_steps_and_records(saved):
    reader = CheckpointReader(saved)
    assert (reader.complete_steps(), reader.latest_step()) == ([2, 5], 5)
    record = {'fingerprint': FINGERPRINT, 'note': 'any', 'step': 5, 'metrics': {'loss': 2.5}, 'has_seal': True}
    assert reader.read_record() == record
    assert reader.read_record(2)['metrics'] == {'loss': 1.5}
    assert (reader.best_step('loss'), reader.best_step('loss', 'max'), reader.best_step('accuracy')) == (2, 5, None)


def test_an_asked_step_is_read_and_a_missing_one_lists_those_there_are(saved):
    reader, layout = CheckpointReader(saved), on_mesh(make_state(), MeshConfig(), 1)
    assert reader.restore(layout, 2).step == 2
    with pytest.raises(InputError, match=r'^there is no checkpoint of step 3 in .*; kept steps: 2, 5$'):
        reader.restore(layout, 3)


@pytest.mark.parametrize(
    ('choice', 'mode', 'step'),
    [('last', 'min', 5), ('best', 'min', 2), ('best', 'max', 5), ('5', 'min', 5), ('02', 'min', 2)],
)
def test_a_choice_names_a_step(saved, choice: str, mode: str, step: int):
    reader = CheckpointReader(saved)
    wanted = reader.parse_choice(choice, metric='loss', mode=mode)
    assert reader.resolve_step(wanted) == reader.read_record(wanted)['step'] == step


@pytest.mark.parametrize(
    ('choice', 'metric', 'message'),
    [
        ('3', 'loss', 'there is no checkpoint of step 3 in {}; kept steps: 2, 5'),
        ('-5', 'loss', "checkpoint '-5' is none of last, best and a step; kept steps in {}: 2, 5"),
        ('', 'loss', "checkpoint '' is none of last, best and a step; kept steps in {}: 2, 5"),
        (
            'best',
            '',
            'no checkpoint is the best one, as checkpoint.best_metric names no metric; kept steps in {}: 2, 5',
        ),
        ('best', 'bad', "no checkpoint is the best one, as none has the metric 'bad'; kept steps in {}: 2, 5"),
    ],
)
def test_a_choice_that_is_not_there_lists_the_steps_that_are(saved, choice: str, metric: str, message: str):
    with pytest.raises(InputError) as caught:
        CheckpointReader(saved).parse_choice(choice, metric=metric)
    assert str(caught.value) == message.format(saved / 'checkpoints')


def test_a_step_that_the_trainer_removes_meanwhile_is_not_the_best(saved, tmp_path, monkeypatch):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    read = CheckpointReader._read_step_record

    def slow(self: CheckpointReader, step: int) -> dict:
        if step == 2:
            shutil.rmtree(self.folder / '2')
        return read(self, step)

    monkeypatch.setattr(CheckpointReader, '_read_step_record', slow)
    assert CheckpointReader(tmp_path).best_step('loss') == 5


def test_without_any_checkpoint_evaluation_is_refused_and_training_starts_anew(tmp_path):
    reader, layout = CheckpointReader(tmp_path), on_mesh(make_state(), MeshConfig(), 1)
    assert reader.latest_step() is None
    assert reader.newest_checkpoint() is None
    for read in (reader.read_record, lambda: reader.restore(layout)):
        with pytest.raises(InputError, match=f'^there is no checkpoint in {tmp_path}'):
            read()
    assert list(tmp_path.iterdir()) == []  # reading creates no folders


def refused(workdir, layout) -> str:
    with pytest.raises(InputError) as caught:
        CheckpointReader(workdir).restore(layout)
    assert '\n' not in str(caught.value)
    return str(caught.value)


def changed(layout: TrainState, **params) -> TrainState:
    return dataclasses.replace(layout, params={**layout.params, **params})


def test_a_wrong_shape_dtype_or_name_is_refused_before_reading(saved):
    layout = on_mesh(make_state(), MeshConfig(), 1)
    embedding = layout.params['token']['embedding']
    wide = changed(layout, token={'embedding': embedding.update(shape=(32, 9))})
    assert 'embedding is float32 [32, 8] in the checkpoint and float32 [32, 9] in this model' in refused(saved, wide)
    short = changed(layout, token={'embedding': embedding.update(dtype=jnp.bfloat16)})
    assert 'is float32 [32, 8] in the checkpoint and bfloat16 [32, 8] in this model' in refused(saved, short)
    more = changed(layout, pooler={'kernel': embedding})
    assert refused(saved, more).endswith('pooler/kernel is missing in the checkpoint (float32 [32, 8] in this model)')
    fewer = dataclasses.replace(layout, params={'token': layout.params['token']})
    assert 'params/layers/up/bias is only in the checkpoint (float32 [3, 16])' in refused(saved, fewer)
    part = {'params': fewer.params}
    assert 'params/layers/up/bias is only in the checkpoint' in refused(saved, part)


def test_the_record_is_read_apart_from_the_arrays(saved):
    reader, layout = CheckpointReader(saved), on_mesh(make_state(), MeshConfig(), 1)
    newest = reader.newest_checkpoint()
    assert newest and newest.step == 5 and newest.record['fingerprint'] == FINGERPRINT
    jax.tree.map(np.testing.assert_array_equal, reader.read_state(layout, 5), reader.restore(layout).state)


@pytest.fixture
def small(tmp_path):
    """Returns a workdir with one array at steps 2 and 5, and the layout for reading it."""
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        for step in (2, 5):
            checkpoints.save(step, {'kernel': jnp.full(4, step, jnp.float32)}, record={})
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return tmp_path, {'kernel': jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)}


def flip(workdir, step: int) -> None:
    """Changes a bit of the step's array; Orbax itself would not notice."""
    (path,) = (workdir / 'checkpoints' / str(step) / 'state' / 'd').iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_newest_step_gives_way_to_the_one_before_and_is_named(small, caplog):
    workdir, layout = small
    flip(workdir, 5)
    restored = CheckpointReader(workdir).restore(layout)
    assert restored.step == 2 and (restored.state['kernel'] == 2.0).all()
    (line,) = caplog.messages
    assert line.startswith(f'checkpoint {workdir}/checkpoints/5 is skipped: state/d/') and line.endswith('was written')


def test_a_damaged_step_that_is_asked_for_is_one_line_with_the_others(small):
    workdir, layout = small
    flip(workdir, 5)
    with pytest.raises(InputError, match=r'checkpoints/5 is damaged: state/d/\w+ is not what .*; other steps: 2$'):
        CheckpointReader(workdir).restore(layout, 5)
    (workdir / 'checkpoints' / '5' / 'record' / 'metadata').unlink()
    with pytest.raises(InputError, match=r'checkpoints/5 cannot be read: FileNotFoundError: .*; other steps: 2$'):
        CheckpointReader(workdir).read_record(5)
    assert CheckpointReader(workdir).read_record()['step'] == 2


def test_where_all_are_damaged_nothing_begins_anew(small):
    workdir, layout = small
    flip(workdir, 2)
    flip(workdir, 5)
    assert refused(workdir, layout) == f'no checkpoint in {workdir}/checkpoints is undamaged; kept steps: 2, 5'
    with pytest.raises(InputError, match='is undamaged; kept steps: 2, 5'):
        CheckpointReader(workdir).newest_checkpoint()


def test_a_run_does_not_start_anew_where_every_step_lost_its_checksums(small):
    workdir, _ = small
    for path in workdir.rglob('seal-*.sha256'):
        path.unlink()
    with pytest.raises(
        InputError, match=r'^no checkpoint in .*/checkpoints has checksums, .*; kept steps: 2, 5; restore'
    ):
        CheckpointReader(workdir).newest_checkpoint()


@pytest.mark.parametrize(('every', 'last_line', 'begins_anew'), [(5, 10, True), (5, 11, False), (4, 5, False)])
def test_one_step_without_checksums_is_the_first_save_or_the_run_has_gone_on(small, every, last_line, begins_anew):
    workdir, _ = small
    shutil.rmtree(workdir / 'checkpoints' / '2')
    (workdir / 'checkpoints' / '5' / 'seal-0-of-1.sha256').unlink()
    (workdir / 'last_saved.json').unlink()
    config = dataclasses.replace(RunConfig(), checkpoint=CheckpointConfig(every_steps=every))
    (workdir / 'config.json').write_text(json.dumps(to_dict(config)))
    (workdir / 'metrics.jsonl').write_text(json.dumps({'step': last_line, 'split': 'train'}) + '\n')
    if begins_anew:
        assert CheckpointReader(workdir).newest_checkpoint() is None
    else:
        with pytest.raises(InputError, match=r'has checksums, which .*; kept steps: 5; restore their'):
            CheckpointReader(workdir).newest_checkpoint()


def test_a_step_without_checksums_counts_only_in_a_workdir_from_before_checksums(small):
    workdir, layout = small
    (workdir / 'checkpoints' / '5' / 'seal-0-of-1.sha256').unlink()
    reader = CheckpointReader(workdir)
    assert (reader.complete_steps(), reader.written_steps(), reader.restore(layout).step) == ([2], [2, 5], 2)
    record = workdir / 'checkpoints' / '5' / 'record' / 'metadata'
    fields = json.loads(record.read_text())
    del fields['has_seal']
    record.write_text(json.dumps(fields))
    assert reader.complete_steps() == [2, 5] and reader.restore(layout).step == 5 and not reader.find_damage(5)


def test_a_step_that_the_trainer_removes_meanwhile_gives_way_to_the_newest(saved, tmp_path, monkeypatch):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    read = CheckpointReader._restore_step

    def slow(self: CheckpointReader, abstract_state: TrainState, step: int) -> RestoredCheckpoint:
        if step == 5:
            shutil.rmtree(self.folder / '5')
        return read(self, abstract_state, step)

    monkeypatch.setattr(CheckpointReader, '_restore_step', slow)
    assert CheckpointReader(tmp_path).restore(on_mesh(make_state(), MeshConfig(), 1)).step == 2


def test_all_processes_read_the_step_that_process_0_has_chosen(small, processes: Processes):  # noqa: F811
    """A process whose folder shows an older list reads that step, too; no process reads a step of its own choice."""
    workdir, layout = small

    def read(number: int) -> int:
        reader = CheckpointReader(workdir)
        if number == 1:
            reader.complete_steps = lambda: [2]
        return reader.restore(layout).step

    assert processes.do(read) == [5, 5, 5]


def test_a_step_that_goes_under_one_process_is_read_by_none(saved, tmp_path, processes: Processes):  # noqa: F811
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    layout = on_mesh(make_state(), MeshConfig(), 1)

    def read(number: int) -> tuple[int, list[int]]:
        reader, tried = CheckpointReader(tmp_path), []

        def slow(abstract_state: TrainState, step: int) -> RestoredCheckpoint:
            tried.append(step)
            if (number, step) == (2, 5):  # the other processes have read the step by then, or are about to
                shutil.rmtree(reader.folder / '5')
            if step == 5 and number < 2:
                return RestoredCheckpoint(step, None, {})
            return CheckpointReader._restore_step(reader, abstract_state, step)

        reader._restore_step = slow
        return reader.restore(layout).step, tried

    assert processes.do(read) == [(2, [5, 2])] * 3


def test_each_process_compares_a_share_of_the_files_and_all_know_what_one_has_found(
    small,
    processes: Processes,  # noqa: F811
    monkeypatch,
):
    workdir, _ = small
    hashed: list[str] = []
    real = checksums._file_sha256
    monkeypatch.setattr(checksums, '_file_sha256', lambda path: hashed.append(path.name) or real(path))
    assert processes.do(lambda _: CheckpointReader(workdir).find_damage(5)) == [''] * 3
    listed = (workdir / 'checkpoints' / '5' / 'seal-0-of-1.sha256').read_text().splitlines()[1:-1]
    assert sorted(hashed) == sorted(line.rpartition('/')[2].split()[-1] for line in listed)
    flip(workdir, 5)
    (found,) = {*processes.do(lambda _: CheckpointReader(workdir).find_damage(5))}
    assert found.startswith('state/d/') and found.endswith(' is not what was written')


TRAINER = """
    import itertools, pathlib, sys
    import jax.numpy as jnp
    from efficient_attention.config.checkpoint import CheckpointConfig
    from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
    from efficient_attention.workdir.metrics import MetricsLog
    workdir = pathlib.Path(sys.argv[1])
    config = CheckpointConfig(keep=1, keep_best=1, best_metric='loss')
    with CheckpointWriter(workdir, config) as checkpoints, MetricsLog(workdir) as log:
        for step in itertools.count(1):
            metrics = {'loss': 1 / step}
            log.write_metrics(step, 'held_out', metrics)
            state = {'kernel': jnp.full(1000, step, jnp.float32)}
            checkpoints.save(step, state, record={}, metrics=metrics)
"""


@pytest.mark.parametrize('reads', [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_read_beside_a_trainer_that_keeps_one_step_fails(tmp_path, reads: int):
    """Reads in turn like eval.py, predict.py and the report, while every step is removed soon after it is saved."""
    reader, seen = CheckpointReader(tmp_path), set()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    layout = {'kernel': jax.ShapeDtypeStruct((1000,), jnp.float32, sharding=sharding)}
    with subprocess.Popen([sys.executable, '-c', textwrap.dedent(TRAINER), str(tmp_path)]) as trainer:
        try:
            while not reader.complete_steps():
                assert trainer.poll() is None
            for number in range(reads):
                wanted = None if number % 2 else reader.parse_choice('best', metric='loss')
                restored = reader.restore(layout, wanted)
                assert (restored.state['kernel'] == restored.step).all() and restored.record['step'] == restored.step
                assert reader.read_record(wanted)['step'] >= restored.step
                assert [line['step'] for line in read_metrics(tmp_path)][: restored.step] == [
                    *range(1, restored.step + 1)
                ]
                if number % 20 == 0:
                    write_report(tmp_path)
                seen.add(restored.step)
            assert trainer.poll() is None and len(seen) > reads / 10  # the trainer went on saving all the time
        finally:
            trainer.kill()
