"""Seals: any damage to a sealed folder is found and named, and nothing else is."""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from efficient_attention.workdir.seal import damage, is_sealed, write_seal

LABEL = 'step 30'


def make(folder: Path, seed: int = 0) -> Path:
    """A folder with files of 1 to 3,000 bytes, two levels deep, sealed."""
    draw = random.Random(seed)
    for name in ('a', 'state/b', 'state/d/c', 'state/d/e', 'record/metadata'):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.choice([1, 40, 3000])))
    write_seal(folder, LABEL)
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob('*') if path.is_file())


def flip(folder: Path, draw: random.Random) -> Path:
    path = draw.choice(files(folder))
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return path


def truncate(folder: Path, draw: random.Random) -> Path:
    path = draw.choice(files(folder))
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])
    return path


def zero(folder: Path, draw: random.Random) -> Path:
    path = draw.choice([path for path in files(folder) if any(path.read_bytes())])
    path.write_bytes(bytes(path.stat().st_size))
    return path


def delete(folder: Path, draw: random.Random) -> Path:
    path = draw.choice(files(folder))
    path.unlink()
    return path


def swap(folder: Path, draw: random.Random) -> Path:
    one, other = draw.sample(files(folder), 2)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    return one


def add(folder: Path, draw: random.Random) -> Path:
    path = folder / draw.choice(['extra', 'state/extra', 'state/d/f', 'seal.tmp'])
    path.write_bytes(draw.randbytes(9))
    return path


@pytest.mark.parametrize('kind', [flip, truncate, zero, delete, swap, add])
def test_every_damage_is_found(tmp_path: Path, kind: Callable):
    """1,000 times over all kinds; the folder is the same bytes each time."""
    whole = make(tmp_path / 'whole')
    for seed in range(167):
        broken = tmp_path / 'broken'
        shutil.copytree(whole, broken)
        kind(broken, random.Random(seed))
        found = damage(broken, LABEL)
        assert found and '\n' not in found and (is_sealed(broken) or 'not sealed' in found)
        shutil.rmtree(broken)
    assert damage(whole, LABEL) == ''


def test_the_file_is_named(tmp_path: Path):
    folder = make(tmp_path / 'x')
    (folder / 'state' / 'b').write_bytes(b'other')
    assert damage(folder, LABEL) == 'state/b is not what was written'
    (folder / 'state' / 'b').unlink()
    assert damage(folder, LABEL) == 'state/b is missing'
    (folder / 'state' / 'b').symlink_to('/etc/passwd')
    assert damage(folder, LABEL) == 'state/b is a link'


def test_another_folder_in_its_place_is_found(tmp_path: Path):
    assert damage(make(tmp_path / 'x'), 'step 40') == 'its seal is that of step 30'


def test_each_process_seals_what_it_wrote(tmp_path: Path):
    for name in ('state/ocdbt.process_0/d/a', 'state/ocdbt.process_1/d/b', 'state/array_metadatas/process_1', 'c'):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    write_seal(tmp_path, LABEL, process=1, processes=2)
    assert not is_sealed(tmp_path)
    assert damage(tmp_path, LABEL) == 'it is not sealed: seal-0-of-2.sha256 is missing'
    write_seal(tmp_path, LABEL, process=0, processes=2)
    assert is_sealed(tmp_path) and not damage(tmp_path, LABEL)
    assert 'process_1' not in (tmp_path / 'seal-0-of-2.sha256').read_text()
    (tmp_path / 'state' / 'ocdbt.process_1' / 'd' / 'b').write_text('other')
    assert damage(tmp_path, LABEL) == 'state/ocdbt.process_1/d/b is not what was written'


def test_a_seal_that_promises_a_billion_others_is_no_seal(tmp_path: Path):
    folder = make(tmp_path / 'x')
    (folder / 'seal-0-of-1.sha256').rename(folder / 'seal-0-of-100000000000000.sha256')
    assert not is_sealed(folder)
    assert damage(folder, LABEL) == f'it is not sealed: seal-1-of-{10**14}.sha256 is missing'


def test_the_usual_program_reads_a_seal(tmp_path: Path):
    if not shutil.which('sha256sum'):
        pytest.skip('sha256sum is not there')
    make(tmp_path / 'x')
    subprocess.run(['sha256sum', '--check', '--strict', 'seal-0-of-1.sha256'], cwd=tmp_path / 'x', check=True)


def test_processes_that_seal_at_the_same_moment_do_not_see_one_another_s_half_seals(tmp_path: Path):
    """A name that has gone when it is looked at stands for the seal that another process has just renamed."""
    folder = make(tmp_path)
    (folder / 'seal-0-of-1.sha256').unlink()
    (folder / 'seal-1-of-2.tmp').symlink_to('gone')
    write_seal(folder, LABEL, process=0, processes=2)
    (folder / 'seal-1-of-2.tmp').unlink()
    write_seal(folder, LABEL, process=1, processes=2)
    assert damage(folder, LABEL) == ''
