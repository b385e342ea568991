"""Tests that every bad input ends in the documented exit code and one line that names the place, and changes no
file.
"""

import contextlib
import hashlib
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grain  # noqa: F401  its flags are known before the programs' own are taken away
import pytest
from absl import flags

from efficient_attention.processes import allocator
from tests.bad_arena import BAD_ARENA
from tests.bad_inputs import BAD_INPUTS, BadInput
from tests.bad_mechanisms import BAD_MECHANISMS
from tests.bad_memories import BAD_MEMORIES
from tests.bad_pairs import BAD_PAIRS
from tests.bad_workdirs import BAD_WORKDIRS
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.test_entry_points import ENVIRONMENT, ROOT
from tests.training.tiny_fine_tuning import write_files
from tests.training.tiny_run import fresh_workdir

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax mixes Python floats with int32 counts, which strict promotion refuses
    pytest.mark.filterwarnings('ignore:the load_module'),  # ml_collections uses load_module
]

NOTICES = ('allocator: ', 'preparing ', 'checkpoint ')  # lines before the error that name work that was done or skipped
OWN_PROCESS = ('row of 10^8', 'header huge')  # inputs that also run in a separate process, as a user starts it


@pytest.fixture(scope='module')
def base(tmp_path_factory) -> Path:
    """Returns the shared folder `{base}` of tests/bad_inputs.py."""
    folder = tmp_path_factory.mktemp('base')
    fresh_workdir(folder).rename(folder / 'run')
    write_files(folder / 'table')
    write_checkpoint(folder / 'hf', 'classification').rename(folder / 'model')
    for seal in (folder / 'model').glob('seal-*'):
        seal.unlink()  # A stranger's folder has no checksums, so no hash finds its faults.
    return folder


def write(bad: BadInput, here: Path, base: Path) -> list[str]:
    """Writes the files of a bad input; returns the words of its command."""
    for name, content in bad.files.items():
        if callable(content):
            content(here / name, base)
        else:
            (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [word.format(base=base, here=here) for word in bad.command.split(' ')]


def content_of(*folders: Path) -> dict[str, str]:
    """Returns a hash of every file below the folders, '' for pipes and links; caches of prepared corpora are left
    out.
    """
    paths = [path for folder in folders for path in sorted(folder.rglob('*')) if 'cache' not in path.parts]
    plain = {path: path.is_file() and not path.is_symlink() and path.stat().st_size < 2**30 for path in paths}
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else '' for path, is_plain in plain.items()
    }


@contextlib.contextmanager
def program(script: str, *arguments: str) -> Iterator[None]:
    """Sets the words of a command line inside the `with` block; afterwards removes the flags that the program
    defined.
    """
    before, words = set(flags.FLAGS), sys.argv
    sys.argv = [script, *arguments]
    try:
        yield
    finally:
        sys.argv = words
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)


def check(bad: BadInput, result: tuple[object, str, str], here: Path, base: Path) -> None:
    code, out, err = result
    lines = [line for line in err.splitlines() if not line.startswith(NOTICES)]
    assert (code, out, len(lines)) == (bad.code, '', 1), f'{code} {out} {err}'
    assert lines[0].startswith(f'error: {bad.line.format(base=base, here=here)}'), lines[0]
    assert lines[0].isprintable() and len(lines[0]) < 5000


ALL = BAD_INPUTS | BAD_WORKDIRS | BAD_PAIRS | BAD_MEMORIES | BAD_ARENA | BAD_MECHANISMS


@pytest.mark.parametrize('bad', ALL.values(), ids=ALL)
def test_a_bad_input_is_one_line_and_changes_nothing(bad: BadInput, base: Path, tmp_path: Path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(allocator.SWITCH, 'default')  # this process has already started with its own allocator
    script, *arguments = write(bad, tmp_path, base)
    before = content_of(base, tmp_path)
    capfd.readouterr()
    with program(script, *arguments), pytest.raises(SystemExit) as exited:
        runpy.run_path(str(ROOT / script), run_name='__main__')
    check(bad, (exited.value.code, *capfd.readouterr()), tmp_path, base)
    assert content_of(base, tmp_path) == before


@pytest.mark.parametrize('name', OWN_PROCESS)
def test_a_process_of_its_own_says_the_same(name: str, base: Path, tmp_path: Path):
    """Tests the same inputs with one device, in a process that has imported and compiled nothing before."""
    bad = BAD_INPUTS[name]
    command = [sys.executable, *write(bad, tmp_path, base)]
    environment = {**ENVIRONMENT, allocator.SWITCH: 'default'}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    check(bad, (ended.returncode, ended.stdout, ended.stderr), tmp_path, base)
