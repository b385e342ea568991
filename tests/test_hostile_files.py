"""Tests that hostile files cannot run code, fill the memory or reach other files.

Each case plants a payload that would create the file `marker`, and runs a command that may read it. Either one error
line refuses the payload, or the command never reads it and does its work.
"""

import dataclasses
import gzip
import json
import runpy
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.sources import text_files
from efficient_attention.data.sources.tfds import tfds_rows
from efficient_attention.errors import InputError
from efficient_attention.processes import allocator
from tests.bad_files import GROWING, SPLIT, Payload, pickled, tokenizer, unsealed
from tests.test_bad_inputs import ROOT, base, program  # noqa: F401  a fixture among them

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax mixes Python floats with int32 counts, which strict promotion refuses
    pytest.mark.filterwarnings('ignore:the load_module'),  # ml_collections uses load_module
]

CONVERT = 'scripts/convert.py --model={here}/model --output={here}/out'
PREDICT = 'scripts/predict.py --model={here}/model --output={here}/out --files={base}/table/dev.tsv'
EXPORT = 'scripts/convert.py --model={here}/run --output={here}/out'
EVALUATE = 'eval.py --workdir={here}/run'
REPORT = 'efficient_attention/__main__.py report --workdir={here}/run'
TRAIN = 'train.py --config=tests/training/tiny_run.py --workdir={here}/new --config.data.cache={here}/cache '
RECORD, METADATA = 'checkpoints/0/record/metadata', 'checkpoints/0/state/_METADATA'
METRICS = b'{"step": 1, "split": "train", "loss": 2.0}\n'


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A hostile change of a copy of the shared model and run, with the command that reads it.

    Attributes:
        plant: makes the change in the case's folder, in which the payload would create `marker`.
        command: the command that may read the payload.
        line: the start of the error line; '' = the command does its work.
    """

    plant: Callable[[Path], object]
    command: str
    line: str = ''


def code(here: Path) -> str:
    """Returns a line of Python that creates the marker file, the proof that code has run."""
    return f'open({str(here / "marker")!r}, "w").close()'


def put(name: str, content: bytes | str | Callable[[Path], bytes | str]) -> Callable[[Path], object]:
    """Returns a function that writes a file, whose content may name the marker file."""

    def plant(here: Path) -> None:
        data = content(here) if callable(content) else content
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    return plant


def shards(index: str) -> Callable[[Path], object]:
    """Returns a function that replaces the single safetensors file by an index of shards."""

    def plant(here: Path) -> None:
        (here / 'model' / 'model.safetensors').unlink()
        put('model/model.safetensors.index.json', index)(here)

    return plant


def pickle_of(here: Path) -> bytes:
    return pickled(here / 'marker')


def old_checkpoint(*plants: Callable[[Path], object]) -> Callable[[Path], object]:
    """Returns a function that makes the checkpoint one without checksums, so that nothing finds the planted changes by
    a hash.
    """
    return lambda here: [unsealed(here / 'run'), *(plant(here) for plant in plants)]


def link(name: str, target: str) -> Callable[[Path], object]:
    """Returns a function that replaces a file by a link to another file of the case's folder."""

    def plant(here: Path) -> None:
        (here / name).unlink(missing_ok=True)
        (here / name).symlink_to(here / target)

    return plant


def both(*plants: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda here: [plant(here) for plant in plants]


def config_with(name: str, **values: object) -> Callable[[Path], object]:
    """Returns a function that adds keys to a config.json."""

    def plant(here: Path) -> None:
        path = here / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return plant


def pickled_array(here: Path) -> None:
    """Replaces the token counts of a prepared corpus by a pickled array, and updates the manifest to match."""
    from efficient_attention.data.preparation.cache_folder import file_sizes_and_checksums, manifest_checksum

    [folder] = (here / 'cache').glob('text-*')
    np.save(folder / 'unigram_counts.npy', np.array([Payload(here / 'marker')], object), allow_pickle=True)
    manifest = json.loads((folder / 'manifest.json').read_text())
    (folder / 'manifest.json').unlink()
    manifest['files'] = file_sizes_and_checksums(folder)
    manifest['checksum'] = manifest_checksum(manifest)
    (folder / 'manifest.json').write_text(json.dumps(manifest))


def claimed_shape(here: Path) -> None:
    """Replaces a checkpoint's arrays by folders of Zarr, each of which claims 2^36 elements and holds none."""
    state = here / 'run' / 'checkpoints' / '0' / 'state'
    metadata = json.loads((state / '_METADATA').read_text())
    (state / 'manifest.ocdbt').unlink()
    (state / '_METADATA').write_text(json.dumps(metadata | {'use_ocdbt': False}))
    claim = {'zarr_format': 2, 'shape': [2**36], 'chunks': [2**36], 'dtype': '<f4', 'fill_value': None}
    claim |= {'compressor': None, 'filters': None, 'order': 'C', 'dimension_separator': '.'}
    for leaf in metadata['tree_metadata'].values():
        folder = state / '.'.join(part['key'] for part in leaf['key_metadata'])
        folder.mkdir()
        (folder / '.zarray').write_text(json.dumps(claim))


def zipped(here: Path) -> bytes:
    """Returns a zip file that contains a pickle, as PyTorch writes it."""
    with zipfile.ZipFile(here / 'x.zip', 'w') as archive:
        archive.writestr('archive/data.pkl', pickle_of(here))
    return (here / 'x.zip').read_bytes()


CALL = '__import__("os").system("touch {marker}")'
HOSTILE = {
    # ---- pickles under names of other formats ----
    'safetensors': Hostile(
        put('model/model.safetensors', pickle_of), CONVERT, '{here}/model/model.safetensors: cannot'
    ),
    'safetensors zipped': Hostile(
        put('model/model.safetensors', zipped), CONVERT, '{here}/model/model.safetensors: ca'
    ),
    'bin beside it': Hostile(put('model/pytorch_model.bin', pickle_of), CONVERT),
    'bin in its place': Hostile(
        both(put('model/pytorch_model.bin', pickle_of), lambda here: (here / 'model/model.safetensors').unlink()),
        CONVERT,
        '{here}/model: no model.safetensors; pytorch_model.bin is a pickle',
    ),
    'model config': Hostile(put('model/config.json', pickle_of), CONVERT, '{here}/model/config.json: not JSON'),
    'vocabulary': Hostile(put('model/vocab.txt', pickle_of), PREDICT, '{here}/model/vocab.txt: byte 0x80 at offset 0'),
    'tokenizer': Hostile(put('model/tokenizer.json', pickle_of), PREDICT, '{here}/model/tokenizer.json: byte 0x80 at'),
    'tokenizer settings': Hostile(
        put('model/tokenizer_config.json', pickle_of), CONVERT, '{here}/model/tokenizer_conf'
    ),
    'SentencePiece': Hostile(
        put('x.model', pickle_of),
        TRAIN + '--config.data.source=text:{base}/corpus.txt#paragraphs --config.data.tokenizer={here}/x.model',
        'tokenizer {here}/x.model: not a SentencePiece model',
    ),
    'records': Hostile(
        put('x.array_record', pickle_of),
        TRAIN + '--config.data.source=arrayrecord:{here}/x.array_record',
        '{here}/x.arr',
    ),
    'counts of a corpus': Hostile(
        pickled_array,
        TRAIN.replace('/new', '/other') + '--config.data.source=text:{base}/corpus.txt#paragraphs',
        '{here}/cache/',
    ),
    'table': Hostile(
        put('x.csv', pickle_of), f'{PREDICT},{{here}}/x.csv', '{here}/x.csv: byte 0x80 at offset 0 is not'
    ),
    'array as a table': Hostile(put('x.npy', pickle_of), f'{PREDICT},{{here}}/x.npy', '{here}/x.npy: not a known kind'),
    'run config': Hostile(put('run/config.json', pickle_of), EVALUATE, '{here}/run/config.json: not JSON'),
    'run tokenizer': Hostile(
        put('run/tokenizer.json', pickle_of),
        'scripts/fill_mask.py --model={here}/run [MASK]',
        '{here}/run/tokenizer.json',
    ),
    'record of a checkpoint': Hostile(
        old_checkpoint(put(f'run/{RECORD}', pickle_of)), EVALUATE, 'there is no checkpoint'
    ),
    'state of a checkpoint': Hostile(
        old_checkpoint(put(f'run/{METADATA}', pickle_of)),
        EVALUATE,
        'checkpoint {here}/run/checkpoints/0 cannot be read',
    ),
    'metrics': Hostile(
        put('run/metrics.jsonl', lambda here: pickle_of(here) + b'\n'),
        REPORT,
        '{here}/run/metrics.jsonl: unusable lines are ignored',
    ),
    # ---- code next to the file that is opened ----
    'model code': Hostile(
        both(
            put('model/modeling_bert.py', code),
            put('model/__init__.py', code),
            config_with('model/config.json', auto_map={'AutoModel': 'modeling_bert.Model'}, trust_remote_code=True),
        ),
        CONVERT,
    ),
    'tokenizer code': Hostile(
        both(
            put('model/tokenization.py', code),
            put('model/tokenizer_config.json', '{"auto_map": {"AutoTokenizer": ["tokenization.T", null]}}'),
        ),
        CONVERT,
    ),
    'config.py in a workdir': Hostile(both(put('run/config.py', code), put('run/sitecustomize.py', code)), EXPORT),
    'YAML in a model': Hostile(
        put('model/config.yaml', lambda here: f'!!python/object/apply:os.system ["touch {here}/marker"]'), CONVERT
    ),
    'pattern of a model': Hostile(
        lambda here: config_with(
            'model/config.json', efficient_attention={'model': {'attention': CALL.format(marker=here / 'marker')}}
        )(here),
        CONVERT,
        "{here}/model/config.json: attention '__import__",
    ),
    'script in metrics': Hostile(put('run/metrics.jsonl', METRICS.replace(b'loss', b'<script>x')), REPORT),
    # ---- paths that lead out of the folder ----
    'shard above': Hostile(
        both(
            put('secret.safetensors', pickle_of),
            shards('{"weight_map": {"a": "../secret.safetensors"}}'),
        ),
        CONVERT,
        '{here}/model/model.safetensors.index.json: no index of shards',
    ),
    'shard by an absolute path': Hostile(
        shards('{"weight_map": {"a": "/etc/passwd"}}'),
        CONVERT,
        '{here}/model/model.safetensors.index.json: no index of shards',
    ),
    'safetensors a link': Hostile(
        both(put('secret', pickle_of), link('model/model.safetensors', 'secret')),
        CONVERT,
        '{here}/model/model.safetensors',
    ),
    'file of a checkpoint a link': Hostile(
        both(put('secret', pickle_of), link(f'run/{METADATA}', 'secret')),
        EVALUATE,
        'no checkpoint in {here}/run/checkpo',
    ),
    'seal with a path above': Hostile(
        put('run/checkpoints/0/seal-0-of-1.sha256', f'# step 0\n{"0" * 64}  ../../../secret\n'),
        EVALUATE,
        'no checkpoint in {here}/run/checkpoints is undamaged',
    ),
    'report through a link': Hostile(
        both(put('secret', b'kept'), put('run/metrics.jsonl', METRICS), link('run/report.tmp', 'secret')), REPORT
    ),
    'lock through a link': Hostile(
        both(put('secret', b'kept'), link('run/lock', 'secret')),
        'train.py --config=tests/training/tiny_run.py --workdir={here}/run --config.data.cache={base}/cache'
        ' --config.data.source=text:{base}/corpus.txt#paragraphs',
        '{here}/run/lock: a link to a file',
    ),
    'tokenizer of a run through a link': Hostile(
        both(put('secret', b'kept'), link('run/tokenizer.json', 'secret')),
        'train.py --config=tests/training/tiny_run.py --workdir={here}/run --config.data.cache={base}/cache'
        ' --config.data.source=text:{base}/corpus.txt#paragraphs',
        '{here}/run/tokenizer.json: a link to a file',
    ),
    # ---- files that fill the memory or take for ever ----
    'array of 2^36 elements': Hostile(
        old_checkpoint(claimed_shape), EVALUATE, 'checkpoint {here}/run/checkpoints/0 is from another model'
    ),
    'zarr of 2^36 elements': Hostile(
        old_checkpoint(
            put(
                'run/checkpoints/0/state/x/.zarray',
                '{"zarr_format": 2, "shape": [68719476736], "chunks": [68719476736]}',
            )
        ),
        EXPORT,
    ),
    'slow pattern': Hostile(
        put('model/tokenizer.json', tokenizer(pre_tokenizer=SPLIT)),
        PREDICT,
        'tokenizer {here}/model/tokenizer.json: its pre',
    ),
    'normalizer that grows': Hostile(
        put('model/tokenizer.json', tokenizer(normalizer=GROWING)),
        PREDICT,
        'tokenizer {here}/model/tokenizer.json: its nor',
    ),
    'padding of 2^40': Hostile(
        put(
            'model/tokenizer.json',
            tokenizer(
                padding={'strategy': {'Fixed': 2**40}, 'direction': 'Right', 'pad_to_multiple_of': None}
                | {'pad_id': 0, 'pad_type_id': 0, 'pad_token': '[PAD]'}
            ),
        ),
        PREDICT,
    ),
    'names without end': Hostile(
        put('model/model.safetensors', struct.pack('<Q', 2**62) + b'{'),
        CONVERT,
        '{here}/model/model.safetensors: cannot',
    ),
}


@pytest.mark.parametrize('hostile', HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_runs_nothing(hostile: Hostile, base: Path, tmp_path: Path, capfd, monkeypatch):  # noqa: F811
    for name in ('model', 'run', 'cache'):
        shutil.copytree(base / name, tmp_path / name)
    hostile.plant(tmp_path)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(allocator.SWITCH, 'default')
    capfd.readouterr()
    script, *arguments = hostile.command.format(base=base, here=tmp_path).split(' ')
    exit_code: object = 0
    with program(script, *arguments):
        try:
            runpy.run_path(str(ROOT / script), run_name='__main__')
        except SystemExit as exited:
            exit_code = exited.code
    err = capfd.readouterr().err
    assert not (tmp_path / 'marker').exists()
    assert exit_code == (2 if hostile.line else 0), err
    if hostile.line:
        assert err.splitlines()[-1].startswith(f'error: {hostile.line.format(base=base, here=tmp_path)}'), err
        assert 'Traceback' not in err
    if (tmp_path / 'secret').exists() and 'kept' in (tmp_path / 'secret').read_text(errors='replace'):
        assert (tmp_path / 'secret').read_bytes() == b'kept'
    if (tmp_path / 'run' / 'report.html').exists():
        assert '<script>' not in (tmp_path / 'run' / 'report.html').read_text()


def test_a_payload_would_be_seen(tmp_path: Path):
    """Checks the method: the planted pickle does create the marker file when it is loaded."""
    import pickle

    (tmp_path / 'x').write_bytes(pickle_of(tmp_path))
    pickle.loads((tmp_path / 'x').read_bytes())
    assert (tmp_path / 'marker').exists()


def test_a_packed_file_is_not_unpacked_without_end(tmp_path: Path):
    """A file of 130 KB holds 128 MiB of one letter. Reading stops after half of it, the most a text of its packed size
    may hold.
    """
    (tmp_path / 'x.txt.gz').write_bytes(gzip.compress(b'a' * 2**27, compresslevel=1))
    for read in (text_files.read_text, lambda path: list(text_files.read_lines(path))):
        with pytest.raises(InputError, match='x.txt.gz: unpacks to more than 67,108,864 bytes, far more than a text'):
            read(tmp_path / 'x.txt.gz')


@pytest.mark.parametrize('key', ['pythonClassName', 'type'])
def test_a_data_set_that_names_a_module_is_refused(key: str, tmp_path: Path, monkeypatch):
    (tmp_path / 'payload.py').write_text(code(tmp_path))
    folder = tmp_path / 'evil' / '1.0.0'
    folder.mkdir(parents=True)
    (folder / 'features.json').write_text(json.dumps({'content': [{key: 'payload.Feature'}]}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    with pytest.raises(InputError, match=r"evil/1.0.0/features.json: 'payload.Feature' is no feature of TensorFlow"):
        tfds_rows('evil', 'train')
    assert not (tmp_path / 'marker').exists()


@pytest.mark.parametrize('name', ['space:set', '../evil', '/tmp/evil', 'a b', 'huggingface:x/y', ''])
def test_a_data_set_by_path_or_of_a_community_is_refused(name: str):
    with pytest.raises(InputError, match='not the name of a data set'):
        tfds_rows(name, 'train')
