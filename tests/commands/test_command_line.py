"""Tests flags, arguments and failures of the commands: one line, and the exit code that says who caused the failure."""

import os
import re
import signal
import subprocess
import sys

import pytest
from absl import flags
from ml_collections import ConfigDict

from efficient_attention.commands import command_line
from efficient_attention.commands.command_line import (
    parse_flags,
    print_error_get_exit_code,
    run_command,
    split_subcommand,
)
from efficient_attention.commands.flags import define_config
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, RunError, RunStopped
from efficient_attention.processes.signal_thread import StoppedBySignal, StopSignalThread
from efficient_attention.training.step_queue import NonFiniteTrainingError
from efficient_attention.workdir.checkpoint_writer import SaveError

LOADING = pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module


@pytest.fixture
def known() -> flags.FlagValues:
    """Returns the flags `--folder` and `--step` of a command."""
    values = flags.FlagValues()
    flags.DEFINE_string('folder', None, 'A folder.', flag_values=values)
    flags.DEFINE_integer('step', None, 'A step.', flag_values=values)
    return values


def test_values(known):
    parse_flags(['program', '--folder=x', '--step', '3'], required=('folder',), options=known)
    assert (known['folder'].value, known['step'].value) == ('x', 3)


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--step=3'], r'^--folder is missing; --help lists all flags$'),
        (['--folder=x', '--stop=3'], r"^Unknown command line flag 'stop'"),
        (['--folder=x', '--step=three'], r"^flag --step=three: 'three' is not a whole number$"),
        (['--folder=x', '--step'], r'--step'),
        (['--folder=x', 'step=3'], r"^'step=3' is no flag; flags and config"),
        (['runs/x', '--step=3'], r"^'runs/x' is no flag; did you mean --folder runs/x\?$"),
    ],
)
def test_bad_flags_are_named(known, arguments: list[str], message: str):
    with pytest.raises(InputError, match=message):
        parse_flags(['program', *arguments], required=('folder',), options=known)


@pytest.mark.parametrize(
    'error, code, line',
    [
        (InputError('data.length is 3'), 2, 'error: data.length is 3'),
        (RunError('the disk is full'), 1, 'error: the disk is full'),
        (NonFiniteTrainingError('stopped at step 7'), 1, 'error: stopped at step 7'),
        (SaveError('checkpoint step 5 not saved'), 1, 'error: checkpoint step 5 not saved'),
        (InputError('two\n  lines'), 2, 'error: two lines'),
        (NotImplementedError('the backend does not serve it'), 2, 'error: the backend does not serve it'),
        (KeyboardInterrupt(), 130, 'interrupted'),
    ],
)
def test_known_errors_are_one_line_and_an_exit_code(capsys, error: BaseException, code: int, line: str):
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as exited:
        run_command(main)
    assert exited.value.code == code
    assert capsys.readouterr() == ('', f'{line}\n')


def test_a_stopped_run_has_said_so_itself(capsys):
    def main() -> None:
        raise RunStopped

    with pytest.raises(SystemExit) as exited:
        run_command(main)
    assert exited.value.code == 3 and capsys.readouterr() == ('', '')


@pytest.mark.parametrize('error', [StoppedBySignal('stopped'), InputError('a worker died'), ZeroDivisionError()])
def test_whatever_a_stop_has_broken_on_its_way_is_the_line_of_the_stop(capfd, monkeypatch, error: BaseException):
    watch = StopSignalThread(leave=sys.exit)
    watch.number = signal.SIGTERM
    monkeypatch.setattr(command_line, 'current_signal_thread', lambda: watch)

    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as exited:
        run_command(main)
    assert exited.value.code == 143
    assert capfd.readouterr() == ('', 'stopped by SIGTERM; there was nothing to save\n')


def test_a_mistake_in_the_program_keeps_its_traceback():
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command(main)


def test_success_is_no_exit_at_all(capsys):
    run_command(lambda: print('done'))
    assert capsys.readouterr().out == 'done\n'


@pytest.mark.parametrize('lines', [1, 100_000], ids=['at the end', 'in the middle'])
def test_output_that_nobody_reads_ends_a_command_without_a_traceback(lines: int):
    code = 'from efficient_attention.commands.command_line import run_command\n'
    code += f'run_command(lambda: [print("a line") for _ in range({lines})])'
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([sys.executable, '-c', code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, b'')


def test_another_broken_pipe_is_no_end_of_the_output():
    def main() -> None:
        raise BrokenPipeError('a worker has ended')

    with pytest.raises(BrokenPipeError, match='a worker has ended'):
        run_command(main)


def test_the_text_of_a_key_error_has_no_extra_quotes(capsys):
    assert print_error_get_exit_code(InputError(KeyError("no field 'widht'"))) == 2
    assert capsys.readouterr().err == "error: no field 'widht'\n"


def test_too_little_memory_is_one_line(capsys):
    error = RuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 95876255176 bytes.')  # the form of JAX's message
    assert print_error_get_exit_code(error) == 1
    said = 'error: the device has not enough memory (Out of memory allocating 95876255176 bytes); take fewer rows'
    assert capsys.readouterr().err.startswith(said)


def parse_with_config(known: flags.FlagValues, monkeypatch, *arguments: str) -> ConfigDict:
    """Parses arguments as train.py does, and returns the config.

    ml_collections reads sys.argv as well as the arguments that it is given.
    """
    define_config('', known)
    monkeypatch.setattr(sys, 'argv', ['program', *arguments])
    parse_flags(sys.argv, required=('config',), options=known)
    return known['config'].value


CONFIGS = {
    'syntax': ('def get_config(:', 'invalid syntax'),
    'import': ('import no_such_module', "No module named 'no_such_module'"),
    'name': ('get_config = 3', "'int' object is not callable"),
    'raises': ('def get_config():\n    raise ValueError("width is odd")', ': width is odd$'),
}


@LOADING
@pytest.mark.parametrize('text, message', CONFIGS.values(), ids=CONFIGS)
def test_a_config_file_that_does_not_load_is_bad_input(known, monkeypatch, tmp_path, text: str, message: str):
    path = tmp_path / 'config.py'
    path.write_text(text, encoding='utf-8')
    with pytest.raises(InputError, match=rf'config.*{message}') as caught:
        parse_with_config(known, monkeypatch, f'--config={path}')
    assert '\n' not in str(caught.value) and 'Traceback' not in str(caught.value)


@LOADING
def test_a_config_file_that_is_not_there_is_named(known, monkeypatch, tmp_path):
    with pytest.raises(
        InputError, match=rf"^config: there is no file '{tmp_path}/none\.py', and no config of this name; "
    ):
        parse_with_config(known, monkeypatch, f'--config={tmp_path}/none.py')


@LOADING
@pytest.mark.parametrize(
    'argument, message',
    [
        ('--config.model.widht=3', r'^unknown config field model.widht; did you mean model.width\?$'),
        ('--config.model.epochs=3', r'^unknown config field model.epochs; did you mean examples.epochs\?$'),
        ('--config.modle=3', r'^unknown config field modle; did you mean model\?$'),
        (
            '--confg.train.steps=3',
            "^Unknown command line flag 'confg.train.steps'; fields begin with --config.: --config.train.steps$",
        ),
        (
            '--train.steps=3',
            "^Unknown command line flag 'train.steps'; fields begin with --config.: --config.train.steps$",
        ),
        ('--config.model.width.x=3', '^model.width is a field, and has no field x$'),
        ('--config.model.width=wide', r"^flag --config\.model\.width=wide: 'wide' is not a whole number$"),
        (
            '--config.model=3',
            r"^flag --config\.model=3: '3' is given to a group; give a value to one field of the group$",
        ),
        ('--config.model.rotary=maybe', "^flag --config.model.rotary=maybe: 'maybe' is neither true nor false$"),
        (
            '--config.model.buckets=(1,',
            r'^flag --config\.model\.buckets=\(1,: \(1, is not a list; write such as a,b or 1,2$',
        ),
        ('--config.=3', "^config: '' is not the name of a field$"),
    ],
)
def test_bad_overrides_are_named(known, monkeypatch, tmp_path, argument: str, message: str):
    path = tmp_path / 'config.py'
    path.write_text(
        'from ml_collections import ConfigDict\n'
        'FIELDS = {"width": 8, "heads": 2, "rotary": True, "buckets": (1, 2)}\n'
        'def get_config():\n    return ConfigDict({"model": FIELDS})\n',
        encoding='utf-8',
    )
    with pytest.raises(InputError, match=message) as caught:
        parse_with_config(known, monkeypatch, f'--config={path}', argument)
    assert '\n' not in str(caught.value)


SMALL = 'from configs.common import default_config\ndef get_config():\n    return default_config()\n'


@LOADING
@pytest.mark.parametrize('made', ['{"train": {"steps": 7}}', 'ConfigDict({"train": {"steps": 7}})'])
def test_fields_that_a_config_leaves_out_have_their_defaults(known, monkeypatch, tmp_path, made: str):
    lines = f'from ml_collections import ConfigDict\ndef get_config():\n    return {made}\n'
    (tmp_path / 'config.py').write_text(lines, encoding='utf-8')
    found = parse_with_config(known, monkeypatch, f'--config={tmp_path}/config.py', '--config.model.width=24')
    assert (found.train.steps, found.model.width, found.optimizer.name) == (7, 24, RunConfig().optimizer.name)


@LOADING
def test_a_config_that_is_no_group_of_fields_is_refused(known, monkeypatch, tmp_path):
    (tmp_path / 'config.py').write_text('def get_config():\n    return 3\n', encoding='utf-8')
    with pytest.raises(InputError, match=r'get_config\(\) must return a ConfigDict, or a dict .*; it returned int$'):
        parse_with_config(known, monkeypatch, f'--config={tmp_path}/config.py')


@LOADING
def test_an_argument_for_a_config_that_takes_none_is_refused(known, monkeypatch, tmp_path):
    (tmp_path / 'config.py').write_text(SMALL, encoding='utf-8')
    argument = f'--config={tmp_path}/config.py:small'
    with pytest.raises(InputError, match=f'^flag {argument}: this config takes no argument; leave out the colon'):
        parse_with_config(known, monkeypatch, argument)


@LOADING
@pytest.mark.parametrize('word', ['--help', '--helpfull'])
def test_only_the_full_help_lists_the_fields_of_a_config_as_they_are_set(
    known, monkeypatch, tmp_path, capsys, word: str
):
    (tmp_path / 'config.py').write_text(SMALL, encoding='utf-8')
    with pytest.raises(SystemExit):
        parse_with_config(known, monkeypatch, f'--config={tmp_path}/config.py', '--config.train.steps=77', word)
    out = capsys.readouterr().out
    assert '  --folder: A folder.' in out
    assert ('  --config.train.steps=77 ' in out) == (word == '--helpfull')
    assert ('\nconfig fields: efficient-attention configs show NAME' in out) == (word == '--help')


def test_help_explains_words_and_flags_and_ends_well(known, capsys):
    with pytest.raises(SystemExit) as exited:
        parse_flags(['program', '--help'], required=('folder',), options=known, words='TEXT...')
    assert not exited.value.code
    assert re.search(
        r'\narguments: TEXT\.\.\.\n\nflags:\n  --folder: A folder\.\n  --step: A step\.\n', capsys.readouterr().out
    )


# ---- arguments and sub-commands ----


@pytest.mark.parametrize(
    'words, arguments',
    [
        ('TEXT...', ['one']),
        ('[PART]', ['one']),
        ('TEXT...', ['one', 'two', '-3']),
        ('METRIC WORKDIR...', ['one', 'two']),
        ('TEXT', ['one']),
    ],
)
def test_words_stand_before_and_behind_flags(known, words: str, arguments: list[str]):
    first, *others = arguments
    assert parse_flags(['program', first, '--step=3', '--', *others], options=known, words=words) == arguments
    assert known.step == 3


@pytest.mark.parametrize(
    'words, arguments, message',
    [
        ('TEXT...', [], 'TEXT is missing'),
        ('METRIC WORKDIR...', ['loss', '--step=3'], 'WORKDIR is missing'),
        ('TEXT', ['one', '--step=3', 'two'], "'two' is one word too many; expected: TEXT"),
    ],
)
def test_missing_and_surplus_words_are_named(known, words: str, arguments: list[str], message: str):
    with pytest.raises(InputError) as raised:
        parse_flags(['program', *arguments], options=known, words=words)
    assert str(raised.value) == message


def test_an_error_names_the_sub_command(known):
    with pytest.raises(InputError, match=r"^draw: Unknown command line flag 'stop'"):
        parse_flags(['program', '--stop=3'], options=known, command='draw')


def test_the_sub_command_comes_first():
    commands = {'draw': 1, 'list': 2}
    assert split_subcommand(['program', 'list', '--step=3'], commands) == ('list', ['program', '--step=3'])
    for arguments, message in (
        ([], 'name a command: draw, list'),
        (['--step=3', 'list'], "'--step=3' is no command; known: draw, list"),
        (['lst'], "'lst' is no command; did you mean list?"),
    ):
        with pytest.raises(InputError) as raised:
            split_subcommand(['program', *arguments], commands)
        assert str(raised.value) == message


def test_help_that_is_read_in_part_ends_well():
    """A program such as `head` reads only a part of the output and closes the pipe."""
    program = 'from absl import flags\nfrom efficient_attention.commands.command_line import parse_flags\n'
    program += "input()\nparse_flags(['program', '--help'], options=flags.FlagValues())"
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    with subprocess.Popen([sys.executable, '-c', program], text=True, **pipes) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate('\n')
    assert (process.returncode, said) == (0, '')


def test_help_without_a_sub_command_lists_them(capsys):
    with pytest.raises(SystemExit) as exited:
        split_subcommand(['program', '--help'], ('draw', 'list'))
    assert not exited.value.code and 'each with its own --help: draw, list\n' in capsys.readouterr().out


@pytest.mark.parametrize(
    'given, joined',
    [
        (['score', '--shots', '0', '1', '8', '--seed', '3'], ['score', '--shots', '0,1,8', '--seed', '3']),
        (['score', '--shots=0', '1', '--files', 'a', 'b,c'], ['score', '--shots=0,1', '--files', 'a,b,c']),
        (['score', '--files', 'a', '--model', 'x', 'y'], ['score', '--files', 'a', '--model', 'x', 'y']),
        (['score', '--files', 'a,', 'b'], ['score', '--files', 'a,b']),
        (['score', '--files'], ['score', '--files']),
        (['score'], ['score']),
    ],
)
def test_several_values_of_a_flag_are_one_list(given: list[str], joined: list[str]):
    assert command_line.joined_lists(given, ('files', 'shots')) == joined
