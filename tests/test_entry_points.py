"""Tests train.py and eval.py from the command line: their output, the files they leave, and one line for bad input."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grain  # noqa: F401  defines its flags once, not within a program whose flags are removed
import pytest
from absl import flags

from efficient_attention.errors import ExitCode
from efficient_attention.processes import allocator
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from tests.quick_compile import FLAGS
from tests.training.tiny_fine_tuning import write_files
from tests.training.tiny_run import fresh_workdir, write_corpus

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax mixes Python floats with int32 counts, which strict promotion refuses
    pytest.mark.filterwarnings('ignore:the load_module'),  # ml_collections uses load_module
]

ROOT = Path(__file__).resolve().parent.parent
# A user's process has one CPU device, not the eight emulated ones of the suite.
ENVIRONMENT = os.environ | {'XLA_FLAGS': FLAGS}
# Fields of runs that compile a step: the program is small and does not depend on `train.steps`, so it can be cached.
QUICK = ['model.dropout_rate=0', 'model.attention_dropout_rate=0', 'optimizer.schedule=constant', 'data.pairs=sop']
Result = tuple[int, str, str]  # exit code, standard output, standard error


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, *arguments]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes)


def call(*arguments: str) -> Result:
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def training(folder: Path, workdir: Path, *arguments: str) -> list[str]:
    """Returns the arguments that train the tiny model on the corpus in `folder`."""
    data = [f'--config.data.source={write_corpus(folder)}', f'--config.data.cache={folder / "cache"}']
    return ['train.py', '--config=tests/training/tiny_run.py', f'--workdir={workdir}', *data, *arguments]


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> Path:
    """Trains three steps, each evaluated and saved, and returns the workdir. best_mode is 'max', so that the best step
    is not the last.
    """
    folder = tmp_path_factory.mktemp('trained')
    fields = [*QUICK, 'train.steps=3', 'eval.every_steps=1', 'checkpoint.every_steps=1']
    fields += ['checkpoint.best_metric=masked_lm_loss', 'checkpoint.best_mode=max']
    code, out, err = call(*training(folder, folder / 'run', *(f'--config.{field}' for field in fields)))
    assert (code, out) == (0, ''), err
    assert 'parameters on 1 cpu device(s) (data 1 x fsdp 1 x tensor 1); new run in ' in err
    assert 'step 3/3  loss ' in err and 'step 3 held out: ' in err
    return folder / 'run'


def held_out(workdir: Path) -> dict[int, dict]:
    """Returns the run's own measurements on the held-out split, by step."""
    lines = map(json.loads, (workdir / 'metrics.jsonl').read_text(encoding='utf-8').splitlines())
    return {line['step']: line for line in lines if line.pop('split') == 'held_out'}


def test_training_leaves_its_run_in_the_workdir(trained):
    config = json.loads((trained / 'config.json').read_text(encoding='utf-8'))
    assert (config['train']['steps'], config['data']['pairs'], config['model']['width']) == (3, 'sop', 16)
    assert (trained / 'report.html').stat().st_size > 10_000
    assert (trained / 'tokenizer.json').is_file()


def assert_evaluated(result: Result, workdir: Path, step: int) -> None:
    """Checks that the last line is a JSON object with the numbers that the run itself measured after `step`."""
    code, out, err = result
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == pytest.approx(held_out(workdir)[step], rel=1e-5)


def test_evaluation_ends_with_one_json_object_of_the_runs_own_numbers(trained):
    assert_evaluated(call('eval.py', f'--workdir={trained}', '--batch_size=3'), trained, 3)


def test_sigterm_ends_a_run_well_with_a_checkpoint(tmp_path):
    fields = [f'--config.{field}' for field in (*QUICK, 'train.steps=1000000')]
    process = start(*training(tmp_path, tmp_path / 'run', *fields))
    for line in process.stderr:
        if line.startswith('step 8/'):
            process.send_signal(signal.SIGTERM)
            break
    _, err = process.communicate(timeout=300)
    assert process.returncode == ExitCode.STOPPED, err
    last = max(int(path.name) for path in (tmp_path / 'run' / 'checkpoints').iterdir())
    assert f'stopped after step {last}, which is saved' in err


@pytest.mark.slow
def test_commands_beside_a_run_that_saves_each_step_and_keeps_one_evaluate_and_predict(tmp_path):
    write_files(tmp_path)
    fields = {'examples.train': tmp_path / 'train.tsv', 'examples.dev': tmp_path / 'dev.tsv'}
    fields |= {'data.tokenizer': tmp_path / 'vocab.txt', 'train.steps': 1_000_000, 'checkpoint.keep': 1}
    fields |= {'checkpoint.every_steps': 1, 'eval.every_steps': 1_000_000}
    words = [f'--config.{name}={value}' for name, value in fields.items()]
    run, seen = tmp_path / 'run', []
    trainer = start('train.py', '--config=tests/training/tiny_fine_tuning.py', f'--workdir={run}', *words)
    try:
        while not CheckpointReader(run).complete_steps():
            assert trainer.poll() is None
        for number in range(3):
            code, out, err = call('eval.py', f'--workdir={run}')
            assert code == 0 and 'is skipped' not in err, err
            seen.append(json.loads(out.splitlines()[-1])['step'])
            output = tmp_path / f'predictions-{number}'
            code, _, err = call('scripts/predict.py', f'--model={run}', f'--output={output}', '--split=dev')
            assert code == 0 and 'is skipped' not in err, err
            assert len(list(output.iterdir())) >= 1
        # the trainer went on saving during all three evaluations
        assert trainer.poll() is None and seen == sorted({*seen})
    finally:
        trainer.kill()
        trainer.communicate()


def catches_sigterm(process: subprocess.Popen) -> bool:
    """Returns whether a process has a handler for SIGTERM, which Python does not install by itself."""
    status = Path(f'/proc/{process.pid}/status').read_text(encoding='utf-8')
    caught = next(line for line in status.splitlines() if line.startswith('SigCgt:'))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize('line', ['', 'preparing ', 'parameters on '], ids=['imports', 'preparation', 'compilation'])
def test_ctrl_c_before_there_is_something_to_save_is_one_line(tmp_path, line: str):
    process = start(*training(tmp_path, tmp_path / 'run'))
    if line:
        assert any(line in said for said in process.stderr)
    else:
        while not catches_sigterm(process):
            time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    said = [text for text in err.splitlines() if text.startswith(('stopped', 'interrupted', 'ended', 'Traceback'))]
    assert (process.returncode, said) == (130, ['stopped by Ctrl-C; there was nothing to save']), err


# ---- programs run inside this process, on its eight devices, which saves the seconds of a start ----


@pytest.fixture
def call_here(monkeypatch, capfd) -> Callable[..., Result]:
    def call(script: str, *arguments: str) -> Result:
        capfd.readouterr()
        monkeypatch.setattr(sys, 'argv', [script, *arguments])
        known, code = set(flags.FLAGS), 0
        try:
            runpy.run_path(str(ROOT / script), run_name='__main__')
        except SystemExit as exited:
            code = exited.code
        finally:
            for name in set(flags.FLAGS) - known:  # the next program defines its own flags of the same names
                delattr(flags.FLAGS, name)
        return code, *capfd.readouterr()

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(allocator.SWITCH, 'default')  # this process has already started with its own allocator
    return call


def test_evaluation_of_the_best_checkpoint(call_here, trained):
    assert_evaluated(call_here('eval.py', f'--workdir={trained}', '--batch_size=16', '--checkpoint=best'), trained, 1)
    measured = held_out(trained)
    assert max(measured, key=lambda step: measured[step]['masked_lm_loss']) == 1  # best_mode is 'max'


def test_evaluation_of_the_mean_of_the_last_checkpoints(call_here, trained):
    code, out, _ = call_here('eval.py', f'--model={trained}', '--batch_size=16', '--average=2')
    found, measured = json.loads(out.splitlines()[-1]), held_out(trained)
    assert (code, found['step'], found['averaged_steps']) == (0, 3, '2, 3')
    losses = [found['masked_lm_loss'], *(measured[step]['masked_lm_loss'] for step in (2, 3))]
    assert len(set(losses)) == 3 and losses == pytest.approx([losses[0]] * 3, rel=0.02)


@pytest.mark.parametrize('script', ['train.py', 'eval.py'])
def test_checkpoints_are_compared_with_their_checksums(call_here, trained, tmp_path, script: str):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    code, out, err = call_here(script, f'--workdir={tmp_path}', '--verify')
    assert (code, err) == (0, '')
    steps = sorted(int(path.name) for path in (tmp_path / 'checkpoints').iterdir() if path.name.isdecimal())
    assert out.splitlines() == [f'checkpoint step {step}: every file is as it was written' for step in steps]
    (tmp_path / 'checkpoints' / '2' / 'record' / 'metadata').write_text('{}')
    code, out, err = call_here(script, f'--workdir={tmp_path}', '--verify')
    assert code == 1 and err == f'error: {tmp_path}/checkpoints: 1 of {len(steps)} checkpoints damaged: step 2\n'
    assert 'checkpoint step 2: damaged: record/metadata is not what was written' in out.splitlines()


@pytest.fixture(scope='module')
def shared(tmp_path_factory) -> Path:
    """Returns a folder with a corpus, its cache, faulty files, and in `run` the workdir of a run of no steps."""
    folder = tmp_path_factory.mktemp('shared')
    fresh_workdir(folder).rename(folder / 'run')
    (folder / 'empty.txt').write_bytes(b'')
    (folder / 'latin.txt').write_bytes(b'Good.\n\nB\xe4d.\n')
    (folder / 'latin.jsonl').write_bytes(b'{"text": "Good."}\n{"text": "B\xe4d."}\n')
    (folder / 'vocab.txt').write_text('[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n', encoding='utf-8')
    return folder


def assert_refused(result: Result, line: str) -> None:
    """Checks for exit code 2, an empty standard output, and one error line after the notices of work done so far."""
    code, out, err = result
    assert (code, out) == (2, ''), err
    lines = [text for text in err.splitlines() if not text.startswith(('allocator: ', 'preparing '))]
    assert len(lines) == 1 and err.endswith(f'{lines[0]}\n'), err
    assert lines[0].startswith(f'error: {line}')


BAD_FIELDS = {  # field of train.py: the error line; {0} is the shared folder
    'model.widht=3': 'unknown config field model.widht; did you mean model.width?',
    'model.width=wide': "flag --config.model.width=wide: 'wide' is not a whole number",
    'data.source=books': "data.source is 'books'; known: stdlib, text:",
    'data.source=text:{0}/none/*.txt': "data.source 'text:{0}/none/*.txt': no file matches '{0}/none/*.txt'",
    'data.source=text:{0}/empty.txt': "data.source 'text:{0}/empty.txt': no text in it",
    'data.source=text:{0}/latin.txt': '{0}/latin.txt: byte 0xe4 at offset 8 is not UTF-8 (',
    'data.source=jsonl:{0}/latin.jsonl#text': '{0}/latin.jsonl: byte 0xe4 at offset 29 is not UTF-8 (',
    'data.tokenizer={0}/vocab.txt': 'tokenizer {0}/vocab.txt: no [MASK] in its vocabulary',
    'data.tokenizer={0}/none.json': 'tokenizer {0}/none.json: cannot be read (No such file or directory)',
    'data.length=64': 'data.length 64 is beyond the position table, model.max_length 32',
    'train.batch_size=12': 'train.batch_size 12 does not divide over 8 devices',
    'eval.batch_size=12': 'eval.batch_size 12 does not divide over 8 devices',
    'mesh.data=3': 'mesh.data 3 x mesh.fsdp 1 x mesh.tensor 1 = 3 devices, but there are 8',
    'checkpoint.best_metric=los': "checkpoint.best_metric is 'los'; known: ",
}


@pytest.mark.parametrize('field, line', BAD_FIELDS.items(), ids=BAD_FIELDS)
def test_a_bad_field_is_one_line(call_here, shared, field: str, line: str):
    arguments = training(shared, shared / 'new', f'--config.{field.format(shared)}')
    assert_refused(call_here(*arguments), line.format(shared))
    assert not (shared / 'new').exists()


BAD_COMMANDS = {  # command line: the error line
    'train.py --config=tests/training/tiny_run.py': '--workdir is missing',
    'train.py --workdir={0}/new --verify=false': '--config is missing, such as --config quickstart; ',
    'train.py --workdir={0}/new --verify --noverify': '--config is missing, such as --config quickstart; ',
    'train.py --config=none.py --workdir={0}/new': "config: there is no file 'none.py', and no config",
    'eval.py --workdir={0}': '{0}: no run there (config.json is missing)',
    'eval.py --workdir={0}/run --batch_size=two': "flag --batch_size=two: 'two' is not a whole number",
    'eval.py --workdir={0}/run --batch_size=12': 'eval.batch_size 12 does not divide over 8 devices',
    'eval.py --workdir={0}/run --checkpoint=7': 'there is no checkpoint of step 7 in {0}/run/checkpoints; kept',
    'eval.py --workdir={0}/run --checkpoint=one': "checkpoint 'one' is none of last, best and a step; kept steps in",
    'eval.py --workdir={0}/run --checkpoint=best': 'no checkpoint is the best one, as none has the metric ',
    'eval.py --model={0}/run --average=5': 'the mean of 5 checkpoints needs as many; {0}/run/checkpoints keeps 1 (0): '
    'train with checkpoint.keep of at least 5',
    'eval.py --workdir={0}/run --average=1 --checkpoint=0': '--average takes the mean of the last checkpoints, and',
    'eval.py --workdir={0}/run --model={0}': '--model and --workdir name one folder: {0}/run or {0}',
    'scripts/fill_mask.py --workdir={0}/run --average=2 [MASK]': 'the mean of 2 checkpoints needs as many; {0}/run/',
    'scripts/fill_mask.py --model={0}/run --checkpoint=7 [MASK]': 'there is no checkpoint of step 7 in {0}/run/',
    'scripts/fill_mask.py --model={0}/run dog': "no [MASK] in the text 'dog'",
    'efficient_attention/__main__.py report --workdir={0}': 'there is nothing to report: {0}/metrics.jsonl is missing',
}


@pytest.mark.parametrize('command, line', BAD_COMMANDS.items(), ids=BAD_COMMANDS)
def test_a_bad_command_is_one_line(call_here, shared, command: str, line: str):
    assert_refused(call_here(*command.format(shared).split()), line.format(shared))


def test_a_workdir_of_another_config_is_one_line(call_here, shared):
    arguments = training(shared, shared / 'run', '--config.data.pairs=sop')
    line = f'{shared / "run"} was made with config.data.pairs = "nsp", now it is "sop"; name a new --workdir'
    assert_refused(call_here(*arguments), line)


def test_a_checkpoint_of_another_model_is_one_line(call_here, shared, tmp_path):
    shutil.copytree(shared / 'run' / 'checkpoints', tmp_path / 'checkpoints')
    arguments = training(shared, tmp_path, '--config.model.layers=3')
    assert_refused(call_here(*arguments), f'checkpoint {tmp_path}/checkpoints/0 was made with config.model.layers = 2')
    line = f'checkpoint {tmp_path}/checkpoints/0 is from another model: params/encoder/stack/layers/'
    # config.json there now has the 3 layers of the refused start
    assert_refused(call_here('eval.py', f'--workdir={tmp_path}'), line)


def test_a_process_of_its_own_says_no_more(tmp_path):
    """Tests exit code, logging and clean-up of a separate process, as a user sees them."""
    arguments = training(tmp_path, tmp_path / 'run')
    (tmp_path / 'corpus.txt').write_bytes(b'Good.\n\nB\xe4d.\n')
    assert_refused(call(*arguments), f'{tmp_path}/corpus.txt: byte 0xe4 at offset 8 is not UTF-8')


def test_a_run_that_does_not_learn_fails_with_one_line_and_another_code(call_here, tmp_path):
    fields = [*QUICK, 'optimizer.learning_rate=1e38', 'optimizer.warmup_steps=0', 'train.max_skipped_in_row=3']
    code, _, err = call_here(*training(tmp_path, tmp_path / 'run', *(f'--config.{field}' for field in fields)))
    assert code == 1 and 'Traceback' not in err
    assert err.splitlines()[-1].startswith('error: stopped at step ')
