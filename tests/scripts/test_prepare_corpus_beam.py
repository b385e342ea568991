"""Tests that prepare_corpus_beam.py makes the same folder as prepare_corpus.py. Tests with Beam itself need `make
beam`.
"""

import bz2
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.text_to_text.common import text_to_text_config
from efficient_attention.config.data import DataConfig
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.corpus.corpus_split_writer import SplitWriter
from efficient_attention.data.corpus.prepare import prepare_corpus
from efficient_attention.errors import InputError, RunError
from efficient_attention.tasks.denoising import DenoisingTask
from scripts.prepare_corpus_beam import ROOT, file_sources, split_own_and_beam_flags, unwrap_worker_error
from tests.data.sources.test_wikipedia_dump import SAMPLE, page

PYTHON = ROOT / '.venv-beam' / 'bin' / 'python'
needs_beam = pytest.mark.skipif(not PYTHON.exists(), reason='needs make beam')
WORDS = ['river', 'house', 'dog', 'king', 'tree', 'road', 'falls', 'sleeps', 'runs', 'sings']


def write_rows(folder: Path) -> None:
    """Writes three files of JSON lines with 30 texts in all."""
    for file in range(3):
        texts = [
            ' '.join(WORDS[(file + row + word) % 10] for word in range(20)) + f'. {file} {row}.' for row in range(10)
        ]
        lines = [json.dumps({'text': text}) for text in texts]
        (folder / f'{file}.jsonl').write_text('\n'.join(lines) + '\n', encoding='utf-8')


def test_flags_of_beam_are_told_from_ours():
    arguments = ['--source', 'stdlib', '--runner', 'FlinkRunner', '--nolowercase', '--flink_master=a:1', '--cache=x']
    ours, beams = split_own_and_beam_flags(arguments, {'--source', '--cache', '--lowercase', '--nolowercase'})
    assert ours == ['--source', 'stdlib', '--nolowercase', '--cache=x']
    assert beams == ['--runner', 'FlinkRunner', '--flink_master=a:1']


def test_a_source_of_several_files_is_one_for_each(tmp_path):
    write_rows(tmp_path)
    assert file_sources(f'jsonl:{tmp_path}/*.jsonl#text') == [
        f'jsonl:{tmp_path}/{file}.jsonl#text' for file in range(3)
    ]
    (tmp_path / 'a.parquet').touch()
    assert file_sources(f'parquet:{tmp_path}/*#text')[-1] == f'parquet:{tmp_path}/a.parquet#text'
    with pytest.raises(InputError, match="data.source is 'stdlib'; it must be made of files: dump:<glob>, "):
        file_sources('stdlib')
    (tmp_path / 'a,b.jsonl').touch()
    with pytest.raises(InputError, match=r"a file of data.source is '.*/a,b.jsonl'; it must be without"):
        file_sources(f'jsonl:{tmp_path}/*.jsonl#text')


@pytest.mark.parametrize(
    ('text', 'kind', 'line'),
    [
        (
            "Traceback ...\nefficient_attention.errors.InputError: a.jsonl: no field 'text' [while running 'read']\n",
            InputError,
            "a.jsonl: no field 'text'",
        ),
        ('Traceback ...\nRunError: c: cannot be written (No space left on device)\n', RunError, 'c: cannot be written'),
        ('the job server has gone\nTraceback ...', RunError, 'RuntimeError: the job server has gone$'),
        ('', RunError, 'RuntimeError: $'),
    ],
)
def test_what_a_worker_raised_is_found_in_beams_traceback(text: str, kind: type[Exception], line: str):
    found = unwrap_worker_error(RuntimeError(text))
    assert type(found) is kind and re.match(line, str(found))


def write_dump(folder: Path) -> None:
    """Writes two files of a Wikipedia dump, one compressed: 20 articles in markup with redirects and talk pages between
    them.
    """
    for file in range(2):
        pages = []
        for row in range(10):
            words = [WORDS[(3 * file + row * word) % 10] for word in range(1, 30)]
            marked = f"'''{words[0]}''' {{{{cite|x}}}} [[{words[1]}|{words[2]}]]"
            text = f'{marked} {" ".join(words[3:])}. {file} {row}.\n\n* {words[0]}'
            pages += [page(text, title=f'{file} {row}'), page('#REDIRECT [[a]]', more='<redirect title="a" />')]
            pages.append(page('Talk.', namespace=1))
        content = f'<mediawiki>{"".join(pages)}</mediawiki>'.encode()
        name, packed = [('0.xml', content), ('1.xml.bz2', bz2.compress(content))][file]
        (folder / name).write_bytes(packed)


@needs_beam
@pytest.mark.parametrize('kind, write', [('jsonl', write_rows), ('dump', write_dump)], ids=['jsonl', 'dump'])
def test_beam_makes_the_folder_of_the_local_preparation(
    tmp_path, monkeypatch, kind: str, write: Callable[[Path], None]
):
    write(tmp_path)
    pattern = {'jsonl': '*.jsonl#text', 'dump': '*.xml*'}[kind]
    fields = {'source': f'{kind}:{tmp_path}/{pattern}', 'held_out': 0.2, 'vocab_size': 60}
    command = compare_with_local(tmp_path, monkeypatch, fields, shard_bytes=600)
    if kind == 'dump':
        return
    noised = text_to_text_config()
    noised.data.update(fields | {'cache': str(tmp_path / 'beam'), 'lowercase': True})
    noised.update_from_flattened_dict({'noise.name': 'bart', 'model.decoder_layers': 1})
    assert [DenoisingTask(from_dict(noised.to_dict(), RunConfig)).corpus.folder] == [*(tmp_path / 'beam').glob('*-*')]
    (tmp_path / '1.jsonl').write_text('{"text": "Good."}\n{"txt": "Bad."}\n', encoding='utf-8')
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 2 and failed.stderr.splitlines()[-1].startswith(f'error: {tmp_path}/1.jsonl: line 2: ')


@needs_beam
@pytest.mark.real
def test_beam_makes_the_same_of_a_sample_of_wikipedia(tmp_path, monkeypatch):
    if not SAMPLE.exists():
        pytest.skip('needs the sample of a dump')
    fields = {'source': f'dump:{SAMPLE}/*.bz2', 'held_out': 0.05, 'vocab_size': 8000}
    compare_with_local(tmp_path, monkeypatch, fields, shard_bytes=200_000)


def compare_with_local(folder: Path, monkeypatch, fields: dict[str, Any], *, shard_bytes: int) -> list[str]:
    """Prepares a corpus of several shards both ways and compares all files; returns the command of Beam."""
    monkeypatch.setitem(SplitWriter.__init__.__kwdefaults__, 'shard_bytes', shard_bytes)
    learnt = prepare_corpus(DataConfig(**fields, cache=str(folder / 'learnt')), show_progress=False)
    fields['tokenizer'] = str(learnt.folder / 'tokenizer.json')
    local = prepare_corpus(DataConfig(**fields, cache=str(folder / 'local')), show_progress=False).folder
    flags = [
        f'--{name}={value}' for name, value in {**fields, 'cache': folder / 'beam', 'shard_bytes': shard_bytes}.items()
    ]
    command = [str(PYTHON), 'scripts/prepare_corpus_beam.py', *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = folder / 'beam' / local.name
    assert done.stdout.splitlines()[-1] == str(made)
    names = sorted(str(path.relative_to(local)) for path in local.rglob('*') if path.is_file())
    assert sorted(str(path.relative_to(made)) for path in made.rglob('*') if path.is_file()) == names
    different = [name for name in names if (local / name).read_bytes() != (made / name).read_bytes()]
    assert different == ['manifest.json']  # it contains the time that the preparation took
    manifests = [json.loads((path / 'manifest.json').read_text()) for path in (local, made)]
    assert manifests[0]['fingerprint'] == manifests[1]['fingerprint']
    assert manifests[0]['counts'] == manifests[1]['counts'] and manifests[0]['counts']['train']['shards'] > 1
    return command
