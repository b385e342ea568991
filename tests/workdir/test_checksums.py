"""Tests that checksums find and name any damage to a folder, and report no undamaged folder."""

import itertools
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.checksums import find_checksum_mismatch, has_all_checksums, write_checksums

LABEL = 'step 30'


def make(folder: Path, seed: int = 0) -> Path:
    """Makes a folder with checksums, whose files have 1 to 3,000 bytes and are up to two levels deep."""
    draw = random.Random(seed)
    for name in ('a', 'state/b', 'state/d/c', 'state/d/e', 'record/metadata'):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.choice([1, 40, 3000])))
    write_checksums(folder, LABEL)
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
    return min(one, other, key=lambda path: (not path.name.startswith('seal-'), path))


def add(folder: Path, draw: random.Random) -> Path:
    path = folder / draw.choice(['extra', 'state/extra', 'state/d/f', 'seal.tmp'])
    path.write_bytes(draw.randbytes(9))
    return path


@pytest.fixture(scope='module')
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a saved step with checksums, whose arrays are split over eight devices."""
    sharding = NamedSharding(jax.make_mesh((8,), ('data',)), PartitionSpec('data'))
    draw = np.random.default_rng(0).standard_normal
    shapes = {'embedding': (64, 16), 'kernel': (16, 48), 'bias': (48,), 'moments': (8, 2, 96)}
    params = {name: jax.device_put(np.float32(draw(shape)), sharding) for name, shape in shapes.items()}
    workdir = tmp_path_factory.mktemp('run')
    with CheckpointWriter(workdir, CheckpointConfig()) as checkpoints:
        checkpoints.save(30, {'params': params, 'step': jnp.int32(30)}, record={'fingerprint': {'data': 'abc'}})
    return workdir / 'checkpoints' / '30'


class Damage(NamedTuple):
    """The new contents of damaged files; None = the file is deleted."""

    contents: dict[str, bytes | None]
    line: str  # the report of `find_checksum_mismatch`


def damages(step: Path, count: int) -> Iterator[Damage]:
    """Yields `count` different damages of a step: first those of `few_damages`, then those of `many_damages`."""
    whole = {path.relative_to(step).as_posix(): path.read_bytes() for path in files(step)}
    made: set[str] = set()
    draw = random.Random(0)
    for found in itertools.chain(few_damages(whole), many_damages(whole, draw)):
        if repr(found.contents) in made or all(whole.get(name) == data for name, data in found.contents.items()):
            continue
        made.add(repr(found.contents))
        yield found
        if len(made) == count:
            return


def few_damages(whole: dict[str, bytes]) -> Iterator[Damage]:
    """Yields a limited number of damages: every file emptied, zeroed and deleted, every two files swapped, some files
    added.
    """
    for name, content in whole.items():
        yield changed(name, b'')
        yield changed(name, bytes(len(content)))
        is_seal = name.startswith('seal-')
        yield Damage(
            {name: None}, 'it lacks checksums: seal-0-of-*.sha256 is missing' if is_seal else f'{name} is missing'
        )
    for one, other in itertools.combinations(whole, 2):
        if whole[one] != whole[other]:
            first = min(one, other, key=lambda name: (not name.startswith('seal-'), name))
            yield Damage({one: whole[other], other: whole[one]}, f'{first} is not what was written')
    folders = sorted({name.rpartition('/')[0] for name in whole})
    for folder, name in itertools.product(folders, ('extra', 'seal.tmp', 'manifest.ocdbt.1', '0' * 32)):
        path = f'{folder}/{name}'.lstrip('/')
        yield Damage({path: b'more'}, f'{path} is not in its checksums')


def many_damages(whole: dict[str, bytes], draw: random.Random) -> Iterator[Damage]:
    """Yields damages without end: the files are cut, and single bits are flipped, in turn."""
    for name in itertools.cycle(whole):
        content = bytearray(whole[name])
        yield changed(name, bytes(content[: draw.randrange(len(content))]))
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        yield changed(name, bytes(content))


def changed(name: str, content: bytes) -> Damage:
    return Damage({name: content}, f'{name} is not what was written')


def test_each_of_400_damages_to_a_step_is_found_and_its_file_is_named(step: Path):
    count = 0
    for found in damages(step, 400):
        before = {name: path.read_bytes() if (path := step / name).exists() else None for name in found.contents}
        put(step, found.contents)
        assert find_checksum_mismatch(step, LABEL) == found.line, found.contents.keys()
        put(step, before)
        count += 1
    assert count == 400 and len(files(step)) >= 10
    assert find_checksum_mismatch(step, LABEL) == ''


def put(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    for name, content in contents.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)


def test_the_file_is_named(tmp_path: Path):
    folder = make(tmp_path / 'x')
    (folder / 'state' / 'b').write_bytes(b'other')
    assert find_checksum_mismatch(folder, LABEL) == 'state/b is not what was written'
    (folder / 'state' / 'b').unlink()
    assert find_checksum_mismatch(folder, LABEL) == 'state/b is missing'
    (folder / 'state' / 'b').symlink_to('/etc/passwd')
    assert find_checksum_mismatch(folder, LABEL) == 'state/b is a link'


def test_another_folder_in_its_place_is_found(tmp_path: Path):
    assert find_checksum_mismatch(make(tmp_path / 'x'), 'step 40') == 'its checksums belong to step 30'


def test_each_process_writes_checksums_of_its_own_files(tmp_path: Path):
    for name in ('state/ocdbt.process_0/d/a', 'state/ocdbt.process_1/d/b', 'state/array_metadatas/process_1', 'c'):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    write_checksums(tmp_path, LABEL, process=1, processes=2)
    assert not has_all_checksums(tmp_path)
    assert find_checksum_mismatch(tmp_path, LABEL) == 'it lacks checksums: seal-0-of-2.sha256 is missing'
    write_checksums(tmp_path, LABEL, process=0, processes=2)
    assert has_all_checksums(tmp_path) and not find_checksum_mismatch(tmp_path, LABEL)
    assert 'process_1' not in (tmp_path / 'seal-0-of-2.sha256').read_text()
    (tmp_path / 'state' / 'ocdbt.process_1' / 'd' / 'b').write_text('other')
    assert find_checksum_mismatch(tmp_path, LABEL) == 'state/ocdbt.process_1/d/b is not what was written'


def test_a_checksum_file_that_names_a_billion_others_is_invalid(tmp_path: Path):
    folder = make(tmp_path / 'x')
    (folder / 'seal-0-of-1.sha256').rename(folder / 'seal-0-of-100000000000000.sha256')
    assert not has_all_checksums(folder)
    assert find_checksum_mismatch(folder, LABEL) == f'it lacks checksums: seal-1-of-{10**14}.sha256 is missing'


def test_sha256sum_reads_a_checksum_file(tmp_path: Path):
    if not shutil.which('sha256sum'):
        pytest.skip('sha256sum is not there')
    make(tmp_path / 'x')
    subprocess.run(['sha256sum', '--check', '--strict', 'seal-0-of-1.sha256'], cwd=tmp_path / 'x', check=True)


def test_processes_do_not_read_half_written_checksum_files_of_others(tmp_path: Path):
    """A file name that disappears during the scan is a checksum file that another process has just renamed."""
    folder = make(tmp_path)
    (folder / 'seal-0-of-1.sha256').unlink()
    (folder / 'seal-1-of-2.tmp').symlink_to('gone')
    write_checksums(folder, LABEL, process=0, processes=2)
    (folder / 'seal-1-of-2.tmp').unlink()
    write_checksums(folder, LABEL, process=1, processes=2)
    assert find_checksum_mismatch(folder, LABEL) == ''
