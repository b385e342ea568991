"""Tests that a workdir belongs to one config: which fields a resumed run may change, and the error for a damaged
config.json.
"""

from pathlib import Path

import pytest

from efficient_attention.config.dict_conversion import from_dict, to_dict
from efficient_attention.config.field_metadata import CHANGEABLE
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.config_file import (
    claim_workdir,
    marked_run_fields,
    more_steps_note,
    read_config,
    with_new_field_defaults,
)


def config(**groups) -> RunConfig:
    return from_dict({'model': {'width': 32}, 'optimizer': {'no_decay': ['bias$']}} | groups, RunConfig)


def test_the_complete_config_comes_back(tmp_path):
    claim_workdir(tmp_path / 'a' / 'b', config())
    assert read_config(tmp_path / 'a' / 'b') == config()
    assert [path.name for path in (tmp_path / 'a' / 'b').iterdir()] == ['config.json']


def test_the_same_config_may_claim_again(tmp_path):
    for _ in range(2):
        claim_workdir(tmp_path, config())
        assert read_config(tmp_path) == config()


@pytest.mark.parametrize(
    'groups, line',
    [
        ({'model': {'width': 64}}, 'config.model.width = 32, now it is 64'),
        ({'train': {'steps': 5}}, 'config.train.steps = 1000, now it is 5'),
        ({'train': {'batch_size': 64}}, 'config.train.batch_size = 32, now it is 64'),
        ({'data': {'mask_rate': 0.2}}, 'config.data.mask_rate = 0.15, now it is 0.2'),
        ({'optimizer': {'no_decay': ['scale$']}}, r'config.optimizer.no_decay = \["bias\$"\], now it is \["scale\$"\]'),
    ],
)
def test_another_config_is_refused_and_the_old_one_stays(tmp_path, groups: dict, line: str):
    claim_workdir(tmp_path, config())
    with pytest.raises(InputError, match=rf'^{tmp_path} was made with {line}.*; name a new --workdir'):
        claim_workdir(tmp_path, config(**groups))
    assert read_config(tmp_path) == config()


def test_what_changes_no_number_may_change_and_is_kept(tmp_path):
    claim_workdir(tmp_path, config())
    changed = {
        'model': {'width': 32, 'remat': 'full', 'scan_unroll': 2, 'attention_backend': 'reference'},
        'train': {'log_every_steps': 7, 'max_skipped_in_row': 3},
        'eval': {'batch_size': 5, 'every_steps': 3},
        'mesh': {'fsdp': 2},
        'checkpoint': {'keep': 9},
        'data': {'cache': 'elsewhere', 'processes': 2, 'workers': 1, 'prefetch': 8},
    }
    claim_workdir(tmp_path, config(**changed))
    assert read_config(tmp_path) == config(**changed)


GROWN = {'train': {'steps': 2000}}


@pytest.mark.parametrize(
    'before, now',
    [
        ({'schedule': 'constant'}, {'schedule': 'constant'}),
        ({'schedule': 'rsqrt'}, {'schedule': 'rsqrt'}),
        ({'schedule': 'linear', 'end_learning_rate_ratio': 0.1}, {'schedule': 'constant', 'learning_rate': 1e-5}),
    ],
)
def test_a_run_may_get_more_steps_under_a_schedule_without_an_end(tmp_path, before: dict, now: dict):
    claim_workdir(tmp_path, config(optimizer=before))
    claim_workdir(tmp_path, config(optimizer=now, **GROWN))
    assert read_config(tmp_path) == config(optimizer=now, **GROWN)
    with pytest.raises(InputError, match=r'train\.steps = 2000, now it is 1000.*; name a new --workdir'):
        claim_workdir(tmp_path, config(optimizer=now))
    with pytest.raises(InputError, match=r'optimizer\.learning_rate'):
        claim_workdir(tmp_path, config(optimizer=now | {'learning_rate': 1.0}, **GROWN))


@pytest.mark.parametrize('task, ways', [('pretraining', 2), ('language_modelling', 1)])
def test_more_steps_under_a_decay_are_refused_with_the_ways_to_train_on(tmp_path, task: str, ways: int):
    fields: dict = {'model': {'width': 32, 'token_types': 0}, 'task': task, 'optimizer': {'schedule': 'linear'}}
    claim_workdir(tmp_path, config(**fields))
    said = r'train\.steps = 1000, now it is 2000; name a new --workdir, or give the old value; to train on, add '
    with pytest.raises(InputError, match=said) as refusal:
        claim_workdir(tmp_path, config(**fields, **GROWN))
    named = ['--config.optimizer.schedule=constant', f'--config.train.start_from={tmp_path}']
    assert [way in str(refusal.value) for way in named] == [True, ways == 2]


@pytest.mark.parametrize(
    'schedule, line',
    [('constant', 'train.batch_size = 32, now it is 64'), ('linear', 'train.steps = 1000, now it is 2000 .*')],
)
def test_more_steps_beside_another_change_have_no_way_to_train_on(tmp_path, schedule: str, line: str):
    fields: dict = {'optimizer': {'schedule': schedule}}
    claim_workdir(tmp_path, config(**fields))
    with pytest.raises(InputError, match=rf'{line}; name a new --workdir, or give the old value$'):
        claim_workdir(tmp_path, config(**fields, train={'steps': 2000, 'batch_size': 64}))


def test_a_run_that_grows_says_so_once():
    saved = {'config': to_dict(config(optimizer={'schedule': 'linear'}))}
    grown = config(optimizer={'schedule': 'constant', 'learning_rate': 2e-4}, **GROWN)
    line = (
        "train.steps grows from 1,000 to 2,000; from here on the learning rate follows the schedule 'constant' with "
        'peak 0.0002'
    )
    assert more_steps_note(saved, grown) == [line]
    assert more_steps_note({'config': to_dict(grown)}, grown) == more_steps_note({}, grown) == []


def test_a_run_from_before_a_field_existed_has_its_default():
    older = {'config': to_dict(config()), 'corpus': 'abc'}
    del older['config']['model']['tied_output'], older['config']['mesh']
    assert with_new_field_defaults(older) == {'config': to_dict(config()), 'corpus': 'abc'}
    assert with_new_field_defaults({}) == {}


def test_no_field_of_parameters_or_examples_is_changeable():
    """Lists the changeable fields by name: a field marked by mistake would let a resumed run continue with other
    results.
    """
    groups = {'config.checkpoint.*', 'config.eval.*', 'config.mesh.*'}
    model = {f'config.model.{name}' for name in ('attention_backend', 'recurrent_chunk', 'remat', 'scan_unroll')}
    data = {f'config.data.{name}' for name in ('cache', 'processes', 'workers', 'prefetch')}
    names = ('early_stop', 'log_every_steps', 'max_skipped_in_row', 'stall_seconds', 'trackers')
    train = {f'config.train.{name}' for name in names}
    distill = {f'config.distill.{name}' for name in ('teacher', 'keep_logits', 'cache')}
    assert set(marked_run_fields(CHANGEABLE)) == groups | model | data | train | distill | {'config.examples.cache'}


@pytest.mark.parametrize(
    'text, message',
    [
        ('{"model": ', r'config\.json: not JSON \(.*\); delete the file and repeat the training command'),
        ('\xff', r'config\.json: not JSON \('),
        ('[]', r'config\.json: the config is \[\]; it must be a group of fields$'),
        (
            '{"model_type": "t5"}',
            r'is a Hugging Face folder, and no run that `train` wrote; such .*`efficient-attention predict`',
        ),
        (
            '{"model_type": "efficient_attention"}',
            r'is the folder of a small model, and no run .*`efficient-attention predict`',
        ),
        ('{"model": {"widht": 3}}', r'config\.json: unknown config field model\.widht; did you mean model\.width\?'),
        ('{"model": {"width": 0}}', r'config\.json: model\.width is 0; it must be at least 1$'),
    ],
)
def test_a_damaged_config_names_the_file(tmp_path, text: str, message: str):
    (tmp_path / 'config.json').write_bytes(text.encode('latin-1'))
    with pytest.raises(InputError, match=message) as caught:
        read_config(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / 'config.json').mkdir()
    with pytest.raises(InputError, match=rf'^{tmp_path}/config\.json: cannot be read \(Is a directory\)$'):
        read_config(tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / 'nowhere'):
        with pytest.raises(InputError, match=rf'^{folder}: no run there \(config.json is missing\)$'):
            read_config(folder)


@pytest.mark.parametrize(
    'name, line',
    [
        ('bert-base-uncased', 'is no folder; names of a hub are not downloaded: give the folder of a run'),
        ('google/mt5-small', 'is no folder; names of a hub are not downloaded: give the folder of a run'),
        ('runs/none', ': no run there (config.json is missing)'),
        ('runs', ': no run there (config.json is missing)'),
    ],
)
def test_the_name_of_a_hub_is_no_run(tmp_path, monkeypatch: pytest.MonkeyPatch, name: str, line: str):
    monkeypatch.chdir(tmp_path)
    Path('runs').mkdir()
    with pytest.raises(InputError) as caught:
        read_config(Path(name))
    assert str(caught.value).removeprefix(name).lstrip() == line


def test_a_file_is_no_workdir(tmp_path):
    path = tmp_path / 'file'
    path.write_text('text', encoding='utf-8')
    with pytest.raises(InputError, match=f'^{path} is a file, and a workdir is a folder; name another --workdir'):
        read_config(path)
    with pytest.raises(InputError, match=rf'^{path}: cannot be written \(File exists\)$'):
        claim_workdir(path, config())
