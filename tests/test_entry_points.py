"""train.py and eval.py from the command line: what a run prints and leaves, and one line for bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.tiny_run import write_corpus

ROOT = Path(__file__).resolve().parent.parent
# Without the eight emulated devices of the suite: a process of a user's has one CPU device.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, *arguments]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes)


def call(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def training(folder: Path, workdir: Path, *arguments: str) -> list[str]:
    """The arguments that train the tiny model on the corpus in `folder`."""
    data = [f'--config.data.source={write_corpus(folder)}', f'--config.data.cache={folder / "cache"}']
    return ['train.py', '--config=tests/training/tiny_run.py', f'--workdir={workdir}', *data, *arguments]


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> Path:
    """The workdir of three steps made by train.py."""
    folder = tmp_path_factory.mktemp('trained')
    code, out, err = call(*training(folder, folder / 'run', '--config.train.steps=3', '--config.data.pairs=sop'))
    assert (code, out) == (0, ''), err
    assert 'parameters on 1 cpu device(s) (data 1 x fsdp 1 x tensor 1); new run in ' in err
    assert 'step 3/3  loss ' in err and 'step 3 held out: ' in err
    return folder / 'run'


def test_training_leaves_its_run_in_the_workdir(trained):
    config = json.loads((trained / 'config.json').read_text(encoding='utf-8'))
    assert (config['train']['steps'], config['data']['pairs'], config['model']['width']) == (3, 'sop', 16)
    assert (trained / 'report.html').stat().st_size > 10_000
    assert (trained / 'tokenizer.json').is_file()


def test_evaluation_ends_with_one_json_object_of_the_runs_last_numbers(trained):
    *_, line = (trained / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()
    expected = json.loads(line)
    assert expected.pop('split') == 'held_out'
    for batch_size in (3, 16):
        code, out, err = call('eval.py', f'--workdir={trained}', f'--batch_size={batch_size}')
        assert code == 0, err
        assert json.loads(out.splitlines()[-1]) == pytest.approx(expected, rel=1e-5)


def test_sigterm_ends_a_run_well_with_a_checkpoint(tmp_path):
    process = start(*training(tmp_path, tmp_path / 'run', '--config.train.steps=1000000'))
    for line in process.stderr:
        if line.startswith('step 8/'):
            process.send_signal(signal.SIGTERM)
            break
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    last = max(int(path.name) for path in (tmp_path / 'run' / 'checkpoints').iterdir())
    assert f'stopped after step {last}, which is saved' in err


# ---- bad input ----


def assert_refused(arguments: list[str], line: str) -> None:
    code, out, err = call(*arguments)
    errors = [text for text in err.splitlines() if text.startswith('error:')]
    assert (code, out, 'Traceback' in err) == (2, '', False), err
    assert len(errors) == 1 and err.endswith(f'{errors[0]}\n'), err
    assert line in errors[0]


@pytest.mark.parametrize(
    'argument, line',
    [
        ('--config.model.widht=3', "error: unknown config field: 'widht' Did you mean"),
        ('--config.model.width=wide', 'error: flag --config.model.width=wide: invalid literal for int()'),
        ('--config.data.source=books', "error: data.source is 'books'; known: stdlib, text:"),
        ('--config.data.length=64', 'error: data.length 64 is beyond the position table, model.max_length 32'),
    ],
)
def test_bad_values_are_one_line(tmp_path, argument: str, line: str):
    assert_refused(training(tmp_path, tmp_path / 'run', argument), line)
    assert not (tmp_path / 'run').exists()


def test_bytes_that_are_not_utf8_are_one_line(tmp_path):
    arguments = training(tmp_path, tmp_path / 'run')
    (tmp_path / 'corpus.txt').write_bytes(b'Good.\n\nB\xe4d.\n')
    assert_refused(arguments, 'corpus.txt: byte 0xe4 at offset 8 is not UTF-8')


def test_missing_flags_and_files_are_one_line(tmp_path):
    assert_refused(['train.py', '--config=tests/training/tiny_run.py'], 'error: --workdir is missing')
    workdir = f'--workdir={tmp_path}'
    assert_refused(['train.py', '--config=none.py', workdir], "error: config: No such file or directory: 'none.py'")
    assert_refused(['eval.py', workdir], f'error: {tmp_path}: no run there (config.json is missing)')


def test_a_workdir_of_another_config_is_one_line(trained):
    arguments = training(trained.parent, trained, '--config.train.steps=3')
    assert_refused(arguments, 'was made with config.data.pairs = "sop", now it is "nsp"; name a new --workdir')


def test_a_checkpoint_of_another_model_is_one_line(trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / 'run')
    text = (workdir / 'config.json').read_text(encoding='utf-8')
    (workdir / 'config.json').write_text(text.replace('"layers": 2', '"layers": 3'), encoding='utf-8')
    assert_refused(['eval.py', f'--workdir={workdir}'], 'is from another model: params/encoder/stack/layers/')


def test_a_run_that_does_not_learn_fails_with_one_line_and_another_code(tmp_path):
    fields = ['optimizer.learning_rate=1e38', 'optimizer.warmup_steps=0', 'train.max_skipped_in_row=3']
    code, _, err = call(*training(tmp_path, tmp_path / 'run', *(f'--config.{field}' for field in fields)))
    assert code == 1 and 'Traceback' not in err
    assert err.splitlines()[-1].startswith('error: stopped at step ')
