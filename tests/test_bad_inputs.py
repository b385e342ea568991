"""Every bad input ends in one line that names the place and the documented exit code, and changes nothing."""

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
    pytest.mark.lenient_promotion,  # Optax multiplies Python floats with int32 counts
    pytest.mark.filterwarnings('ignore:the load_module'),  # which ml_collections uses
]

NOTICES = ('allocator: ', 'preparing ', 'checkpoint ')  # lines before the error that say what was done, or skipped
OWN_PROCESS = ('row of 10^8', 'header huge')  # as a user starts them


@pytest.fixture(scope='module')
def base(tmp_path_factory) -> Path:
    """The shared folder of tests/bad_inputs.py."""
    folder = tmp_path_factory.mktemp('base')
    fresh_workdir(folder).rename(folder / 'run')
    write_files(folder / 'table')
    write_checkpoint(folder / 'hf', 'classification').rename(folder / 'model')
    for seal in (folder / 'model').glob('seal-*'):
        seal.unlink()  # folders of others have no checksums, so their faults are not found by a hash
    return folder


def write(bad: BadInput, here: Path, base: Path) -> list[str]:
    """Writes what the input needs; returns the words of its command."""
    for name, content in bad.files.items():
        if callable(content):
            content(here / name, base)
        else:
            (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [word.format(base=base, here=here) for word in bad.command.split(' ')]


def content_of(*folders: Path) -> dict[str, str]:
    """A hash of every file below the folders, without the caches of prepared corpora; pipes and links by their name."""
    paths = [path for folder in folders for path in sorted(folder.rglob('*')) if 'cache' not in path.parts]
    plain = {path: path.is_file() and not path.is_symlink() and path.stat().st_size < 2**30 for path in paths}
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else '' for path, is_plain in plain.items()
    }


@contextlib.contextmanager
def program(script: str, *arguments: str) -> Iterator[None]:
    """The words of a command line, and afterwards no flags but those that there were before."""
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
    monkeypatch.setenv(allocator.SWITCH, 'default')  # this process has its allocator already
    script, *arguments = write(bad, tmp_path, base)
    before = content_of(base, tmp_path)
    capfd.readouterr()
    with program(script, *arguments), pytest.raises(SystemExit) as exited:
        runpy.run_path(str(ROOT / script), run_name='__main__')
    check(bad, (exited.value.code, *capfd.readouterr()), tmp_path, base)
    assert content_of(base, tmp_path) == before


@pytest.mark.parametrize('name', OWN_PROCESS)
def test_a_process_of_its_own_says_the_same(name: str, base: Path, tmp_path: Path):
    """With one device, and nothing imported or compiled before."""
    bad = BAD_INPUTS[name]
    command = [sys.executable, *write(bad, tmp_path, base)]
    environment = {**ENVIRONMENT, allocator.SWITCH: 'default'}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    check(bad, (ended.returncode, ended.stdout, ended.stderr), tmp_path, base)
