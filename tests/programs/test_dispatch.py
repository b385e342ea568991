"""Tests the command `efficient-attention`: its help, the help and flags of each subcommand, and one line for errors."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from absl import flags

from efficient_attention import __version__
from efficient_attention.programs import dispatch

ROOT = Path(__file__).resolve().parents[2]
LOADING = pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module
Result = tuple[int, str, str]  # exit code, standard output, standard error
SCRIPTS = {'train.py': 'train', 'eval.py': 'eval'}  # {script of the checkout: the subcommand that it starts}
SCRIPTS |= {'scripts/train_grid.py': 'grid', 'scripts/train_seeds.py': 'seeds', 'scripts/fill_mask.py': 'fill-mask'}
SCRIPTS |= {f'scripts/{name}.py': name for name in ('predict', 'convert', 'generate', 'translate', 'plan', 'visualize')}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Result]:
    """Returns a function that runs the command in this process."""

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, 'argv', ['/somewhere/bin/efficient-attention', *arguments])
        code = 0
        try:
            dispatch.main()
        except SystemExit as exited:
            code = int(exited.code or 0)
        return code, *capsys.readouterr()

    return run


def flags_of_programs() -> Iterator[tuple[str, flags.FlagValues]]:
    """Yields the name of each subcommand with its flags; if it has actions, once for each action."""
    for name in dispatch.PROGRAMS:
        program = dispatch.load_program(name)
        if hasattr(program, 'WORDS'):
            yield from ((f'{name} {command}', program.define_flags(command)) for command in program.WORDS)
        elif hasattr(program, 'define_flags'):
            yield name, program.define_flags()


@pytest.mark.parametrize('arguments', [(), ('--help',), ('-h',)])
def test_the_help_has_a_line_for_each_subcommand(call, arguments: tuple[str, ...]):
    code, out, err = call(*arguments)
    assert (code, err) == (0, '')
    lines = out.partition('subcommands:\n')[2].splitlines()
    assert [line.split()[0] for line in lines] == list(dispatch.PROGRAMS)
    assert all(re.fullmatch(r'  [\w-]+ +[A-Z].*\.', line) and len(line) <= 100 for line in lines)


def test_the_help_is_fast_because_it_imports_no_other_package():
    program = 'import sys, efficient_attention.programs.dispatch as d; sys.argv[1:] = []; d.main(); print(*sys.modules)'
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name.partition('.')[0] for name in done.stdout.splitlines()[-1].split()}
    assert 'efficient_attention' in imported and not imported & {'jax', 'numpy', 'absl', 'ml_collections'}


def test_a_pipe_that_its_reader_closes_is_no_error():
    command = f'{sys.executable} -m efficient_attention --help | true'
    done = subprocess.run(['bash', '-o', 'pipefail', '-c', command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')


def test_the_version(call):
    assert call('--version') == (0, f'{__version__}\n', '')


@pytest.mark.parametrize(
    'name, line',
    [
        ('trian', "'trian' is no subcommand; did you mean train?"),
        ('fill_mask', "'fill_mask' is no subcommand; did you mean fill-mask?"),
        ('xyz', f"'xyz' is no subcommand; known: {', '.join(dispatch.PROGRAMS)}"),
    ],
)
def test_an_unknown_subcommand_is_one_line_with_the_nearest_name(call, name: str, line: str):
    assert call(name) == (2, '', f'error: {line}\n')


@LOADING
@pytest.mark.parametrize('name', dispatch.PROGRAMS)
def test_each_subcommand_has_help(call, name: str):
    code, out, err = call(name, '--help')
    program = dispatch.load_program(name)
    assert (code, err) == (0, '') and out.startswith(program.__doc__)
    assert f'efficient-attention {name} ' in program.__doc__ and 'scripts/' not in program.__doc__
    if hasattr(program, 'WORDS'):
        assert f'commands, each with its own --help: {", ".join(program.WORDS)}' in out
        for word in program.WORDS:
            code, out, err = call(name, word, '--help')
            assert (code, err) == (0, '')
            assert (f'flags of {word}:' in out) == bool(set(program.define_flags(word)) - {'help'})
    elif hasattr(program, 'define_flags'):
        assert set(re.findall(r'^  --(?:\[no\])?(\w+):', out, re.MULTILINE)) == set(program.define_flags())


def test_every_run_and_model_is_named_by_model_or_by_workdir():
    seen = set()
    for name, options in flags_of_programs():
        if {'model', 'workdir'} & set(options):
            seen.add(name)
            for flag in ('model', 'workdir'):
                options.unparse_flags()
                options(['program', f'--{flag}=runs/{flag}'])
                assert options.model == options.workdir == Path(f'runs/{flag}'), name
    assert {name.split()[0] for name in seen} >= {
        *('train', 'seeds', 'grid', 'sweep', 'eval', 'predict', 'fill-mask', 'generate', 'translate', 'convert'),
        *('export', 'visualize', 'report'),
    }


def test_programs_that_compute_for_long_keep_freed_memory_without_a_note():
    for name in dispatch.KEEP_FREED_MEMORY:
        source = inspect.getsource(dispatch.load_program(name))
        assert '    tune_allocator()\n' in source and 'keep_freed_memory' not in source, name


def test_a_missing_flag_is_one_line(call):
    line = 'error: --workdir is missing, such as --workdir runs/quickstart; --help lists all flags\n'
    assert call('report') == (2, '', line)


def test_the_report_of_a_run_is_written_again(call, tmp_path: Path):
    line = {'step': 1, 'split': 'train', 'loss': 2.0}
    (tmp_path / 'metrics.jsonl').write_text(f'{line}\n{line | {"step": 2}}\n'.replace("'", '"'))
    for flag in ('--workdir', '--model'):
        assert call('report', flag, str(tmp_path)) == (0, f'{tmp_path / "report.html"}\n', '')
        assert '<html' in (tmp_path / 'report.html').read_text()
        (tmp_path / 'report.html').unlink()


def test_a_missing_package_of_the_extra_is_one_line(call, monkeypatch: pytest.MonkeyPatch):
    def load(_: str) -> None:
        raise ModuleNotFoundError("No module named 'absl'", name='absl')

    monkeypatch.setattr(dispatch, 'load_program', load)
    code, out, err = call('train')
    assert (code, out, err.count('\n')) == (2, '', 1)
    assert err.startswith("error: efficient-attention train needs: pip install 'efficient-attention[train]'")
    assert err.endswith("(No module named 'absl')\n")


def test_a_missing_module_of_the_package_itself_is_an_error(call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(dispatch.PROGRAMS, 'none', '')
    with pytest.raises(ModuleNotFoundError, match='efficient_attention.programs.none'):
        call('none')


def test_every_program_is_listed():
    paths = (ROOT / 'efficient_attention' / 'programs').glob('*.py')
    modules = {path.stem for path in paths if '\ndef main(' in path.read_text(encoding='utf-8')} - {'dispatch'}
    assert modules == {name.replace('-', '_') for name in dispatch.PROGRAMS}


def test_the_checkout_keeps_its_scripts():
    for script, name in SCRIPTS.items():
        assert f"    run_program('{name}')\n" in (ROOT / script).read_text(encoding='utf-8')
        assert name in dispatch.PROGRAMS
