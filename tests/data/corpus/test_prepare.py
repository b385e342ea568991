"""Tests of corpus preparation from a config: the content, when the cache is rebuilt, and the errors."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus import encoding
from efficient_attention.data.corpus import prepare as module
from efficient_attention.data.corpus.prepare import describe_counts, prepare_corpus, training_documents
from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.tokenizers import config_tokenizer as tokenizer_choice
from efficient_attention.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    f'Story {number}. '
    + ' '.join(f'The {word} of number {number} said {word}s.' for word in ('cat', 'dog', 'owl', 'fox'))
    for number in range(40)
]


@pytest.fixture(autouse=True)
def books(tmp_path, monkeypatch):
    """Returns a folder with one file per document; its parent becomes the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'books').mkdir()
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / 'books' / f'{number:02d}.txt').write_text(text, encoding='utf-8')
    return tmp_path / 'books'


def config(**options):
    return DataConfig(**({'source': 'text:books/*.txt', 'vocab_size': 120, 'held_out': 0.2} | options))


def made(**options):
    return prepare_corpus(config(**options), show_progress=False)


def texts_of(prepared, corpus):
    tokenizer = Tokenizer.from_file(str(prepared.tokenizer_file))
    return [[tokenizer.decode(ids.tolist()) for ids in corpus.sentences(number)] for number in range(len(corpus))]


def test_both_splits_hold_their_documents_in_order():
    prepared = made()
    tokenizer = Tokenizer.from_file(str(prepared.tokenizer_file))
    hashes = {text: document_hash(text) for text in DOCUMENTS}
    chosen = [text for text in DOCUMENTS if hashes[text] < 0.2 * 2**64]
    assert 0 < len(chosen) < 20
    for corpus, documents in [(prepared.held_out, chosen), (prepared.train, [t for t in DOCUMENTS if t not in chosen])]:
        assert len(corpus) == len(documents)
        for number, text in enumerate(documents):
            expected = [tokenizer.encode(one, add_special_tokens=False).ids for one in split_sentences(text)]
            assert [ids.tolist() for ids in corpus.sentences(number)] == expected


def test_counts_and_manifest():
    prepared = made()
    counts = np.zeros(120, np.int64)
    for number in range(len(prepared.train)):
        counts += np.bincount(np.concatenate(prepared.train.sentences(number)), minlength=120)
    assert np.array_equal(prepared.unigram_counts, counts) and counts[1] == 0
    manifest = prepared.manifest
    assert manifest['source'] == 'text:books/*.txt' and manifest['characters'] == sum(map(len, DOCUMENTS))
    for split in ('train', 'held_out'):
        corpus = getattr(prepared, split)
        stored = manifest['counts'][split]
        assert stored['documents'] == len(corpus) and stored['sentences'] == len(corpus.sentence_lengths)
        assert stored['tokens'] == corpus.sentence_lengths.sum()
    assert set(manifest['files']) == {
        str(path.relative_to(prepared.folder))
        for path in prepared.folder.rglob('*')
        if path.is_file() and path.name != 'manifest.json'
    }
    assert manifest['tokenizer_sha256'] == manifest['files']['tokenizer.json']['sha256']
    assert describe_counts(manifest['counts']).count('documents') == 2


def test_the_cache_is_used_again(monkeypatch):
    first = made()
    monkeypatch.setattr(module, '_build_corpus', lambda *arguments: pytest.fail(f'built again: {arguments[0]}'))
    assert made().folder == first.folder
    # These fields do not affect preparation.
    assert made(length=64, pairs='sop', mask_rate=0.2, processes=2).folder == first.folder


def test_a_moved_or_renamed_source_finds_its_cache(books):
    first = made()
    (books / 'deeper').mkdir()
    for path in sorted(books.glob('*.txt')):
        path.rename(books / 'deeper' / f'x{path.name}')
    assert made(source='text:books/deeper/*').folder == first.folder


def test_any_change_of_content_or_settings_is_a_new_corpus(books):
    first = made()
    folders = {first.folder}
    fingerprints = {first.fingerprint}
    changes = [
        {'held_out': 0.3},
        {'vocab_size': 130},
        {'lowercase': False},
        {'tokenizer': 'train:bpe', 'vocab_size': 300},
    ]
    changes += [
        {'tokenizer': 'train:unigram'},
        {'source': 'text:books/*.txt#paragraphs'},
        {'source': 'text:books/0*.txt'},
    ]
    for change in changes:
        prepared = made(**change)
        folders.add(prepared.folder)
        fingerprints.add(prepared.fingerprint)
    (books / '07.txt').write_text(DOCUMENTS[7].replace('cat', 'bat'))
    changed = made()
    assert len(folders | {changed.folder}) == 9
    assert len(fingerprints | {changed.fingerprint}) >= 8  # Splitting one-line files at paragraphs changes no document.
    assert any(
        'bat' in one for text in texts_of(changed, changed.train) + texts_of(changed, changed.held_out) for one in text
    )
    assert not any('bat' in one for text in texts_of(first, first.train) for one in text)


def test_a_changed_tokenizer_file_is_a_new_corpus():
    made().tokenizer_file.rename('tokenizer.json')
    first = made(tokenizer='tokenizer.json')
    content = json.loads(Path('tokenizer.json').read_text())
    content['normalizer']['strip_accents'] = False
    Path('tokenizer.json').write_text(json.dumps(content))
    second = made(tokenizer='tokenizer.json')
    assert first.folder != second.folder and first.fingerprint != second.fingerprint


def test_a_fingerprint_stands_for_the_ids_themselves(monkeypatch):
    """The fingerprint follows the ids: other sentences, from changed code, must not count as the same corpus."""
    first = made(cache='one')
    monkeypatch.setattr(encoding, 'split_sentences', lambda text: split_sentences(text)[1:])
    second = made(cache='two')
    assert first.manifest['source_sha256'] == second.manifest['source_sha256']
    assert first.manifest['tokenizer_sha256'] == second.manifest['tokenizer_sha256']
    assert first.fingerprint != second.fingerprint


def test_the_order_of_files_moves_no_document_across_the_split(books):
    before = made(tokenizer='train:bpe', vocab_size=300)
    for number, path in enumerate(sorted(books.glob('*.txt'))):
        path.rename(books / f'{"ba"[number % 2]}{path.name}')
    after = made(tokenizer='train:bpe', vocab_size=300)
    assert before.folder != after.folder
    for split in ('train', 'held_out'):
        one, other = (sorted(texts_of(prepared, getattr(prepared, split))) for prepared in (before, after))
        assert one == other


def test_held_out_documents_teach_the_tokenizer_nothing(books):
    held_out = next(text for text in DOCUMENTS if document_hash(text) < 0.2 * 2**64)
    path = books / f'{DOCUMENTS.index(held_out):02d}.txt'
    suffix = next(n for n in range(1000) if document_hash(f'{held_out} Zyzzyva zyzzyva. {n}') < 0.2 * 2**64)
    path.write_text(f'{held_out} Zyzzyva zyzzyva. {suffix}')
    prepared = made()
    pieces = Tokenizer.from_file(str(prepared.tokenizer_file)).get_vocab()
    assert not any('z' in piece for piece in pieces if not piece.startswith('['))


def test_several_processes_prepare_the_same_corpus(monkeypatch):
    alone = made(processes=1, cache='one')
    monkeypatch.setattr(module, 'PARALLEL_CHARACTERS', 0)
    together = made(processes=2, cache='two')
    assert alone.manifest['files'] == together.manifest['files']
    assert alone.fingerprint == together.fingerprint and alone.folder.name == together.folder.name


def test_a_corpus_that_is_not_kept_in_memory_is_the_same(monkeypatch):
    kept = made(cache='one')
    monkeypatch.setattr(module, 'KEPT_CHARACTERS', 100)
    assert made(cache='two').manifest['files'] == kept.manifest['files']


def test_a_tokenizer_learns_from_a_part_of_a_large_corpus(monkeypatch):
    monkeypatch.setattr(tokenizer_choice, 'TRAINING_CHARACTERS', 2000)
    first = made(cache='one')
    assert first.manifest['files'] == made(cache='two').manifest['files']
    assert first.vocabulary.size == 120


@pytest.mark.parametrize('share, held_out', [(0, 0), (1e-6, 1), (1 - 1e-6, 39), (1, 40)])
def test_small_corpora_hold_something_out(books, share, held_out):
    prepared = made(held_out=share, tokenizer=str(saved_tokenizer(books)))
    assert (len(prepared.train), len(prepared.held_out)) == (40 - held_out, held_out)


def saved_tokenizer(books):
    return made().tokenizer_file.rename(books.parent / 'tokenizer.json')


def test_two_preparations_at_the_same_time():
    results = []
    threads = [threading.Thread(target=lambda: results.append(made())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({prepared.folder for prepared in results}) == 1 and len(results) == 3
    assert [path.name for path in Path('cache').iterdir()] == [results[0].folder.name]


KILLED = """
import os, signal, sys
from efficient_attention.data.corpus import encoding
from efficient_attention.data.tokenizers import config_tokenizer as tokenizer_choice
from efficient_attention.data.corpus import prepare as module
module.write_manifest = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
module.prepare_corpus(module.DataConfig(source='text:books/*.txt', vocab_size=120, held_out=0.2))
"""


def test_a_killed_preparation_leaves_no_half_corpus():
    environment = os.environ | {'PYTHONPATH': str(ROOT)}
    killed = subprocess.run([sys.executable, '-c', KILLED], env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name[:9] for path in Path('cache').iterdir()] == ['.partial-']
    prepared = made()
    assert [path.name for path in Path('cache').iterdir()] == [prepared.folder.name]


def test_a_failed_preparation_leaves_nothing(monkeypatch):
    def fail(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, 'write_manifest', fail)
    with pytest.raises(KeyboardInterrupt):
        made()
    assert not list(Path('cache').iterdir())


def test_a_damaged_cache_says_what_to_do():
    prepared = made()
    path = prepared.folder / 'train' / 'sentence_lengths.npy'
    path.write_bytes(path.read_bytes()[:-1] + b'\x01')
    with pytest.raises(InputError, match=r'sentence_lengths\.npy: damaged.*delete the folder'):
        made()


@pytest.mark.parametrize(
    'options, fault',
    [
        ({'source': 'web:x'}, 'known: stdlib'),
        ({'source': 'text:none/*.txt'}, "no file matches 'none/*.txt'"),
        ({'source': 'text:empty.txt'}, "data.source 'text:empty.txt': no text in it"),
        ({'source': 'text:latin.txt'}, 'latin.txt: byte 0xe9 at offset 3 is not UTF-8'),
        (
            {'source': 'text:books/00.txt'},
            "it is one document, so none is left to hold out; use data.source='text:books/00.txt#paragraphs' (blank "
            'lines separate documents), or data.held_out=0 to train without evaluation',
        ),
        ({'tokenizer': 'train:words'}, "data.tokenizer is 'train:words'; known: train:wordpiece"),
        ({'tokenizer': 'vocab.txt'}, 'tokenizer vocab.txt: no [MASK] in its vocabulary'),
        ({'tokenizer': 'good/vocab.txt'}, 'data.vocab_size is 120; the tokenizer good/vocab.txt has 7 pieces'),
        ({'tokenizer': 'gone/vocab.txt'}, 'tokenizer gone/vocab.txt: cannot be read'),
        ({'vocab_size': 10}, 'data.vocab_size is 10;'),
        ({'cache': 'empty.txt'}, 'data.cache: empty.txt/'),
    ],
)
def test_bad_input_is_one_line(options, fault):
    Path('empty.txt').write_text(' \n')
    Path('latin.txt').write_bytes('café.'.encode('latin-1'))
    Path('vocab.txt').write_text('[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n')
    Path('good').mkdir()
    Path('good/vocab.txt').write_text('[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n')
    with pytest.raises(InputError) as caught:
        made(**options)
    message = str(caught.value)
    assert fault in message and '\n' not in message
    assert not Path('cache').exists() or not list(Path('cache').iterdir())


def test_settings_can_be_chosen_on_a_part_that_the_final_figure_does_not_use():
    def trained_on(share: float) -> list[str]:
        return list(training_documents(config(held_out=share)))

    everything, most, fewer = trained_on(0.0), trained_on(0.2), trained_on(0.5)
    assert len(everything) > len(most) > len(fewer) and set(fewer) < set(most) < set(everything)
    Path('most.jsonl').write_text('\n'.join(json.dumps({'text': text}) for text in most))
    assert list(training_documents(config(held_out=0.5, source='jsonl:most.jsonl#text'))) == fewer


def test_progress_goes_to_standard_error_where_it_is_wanted(capsys):
    prepare_corpus(config())
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(': ')[1] for line in lines[:3]] == ['reading', 'learning the vocabulary', 'tokenising']
    assert len(lines) == 4 and 'held out' in lines[3] and lines[3].endswith(str(prepare_corpus(config()).folder))
    assert capsys.readouterr().err == ''  # A cached corpus is opened silently.


def test_only_named_fields_decide():
    """Each field that preparation reads changes the cache folder's name; otherwise stale caches would be used."""
    name = module.corpus_folder(config(), 'digest')
    deciding = {'held_out': 0.5, 'tokenizer': 'train:bpe', 'vocab_size': 99, 'lowercase': False}
    assert all(module.corpus_folder(config(**{field: value}), 'digest') != name for field, value in deciding.items())
    assert module.corpus_folder(config(), 'other') != name
    names = [module.corpus_folder(config(), 'digest', sentinels) for sentinels in (0, 1, 2)]
    assert names[0] == name and len({*names}) == 3  # Without sentinels, other tasks share the corpus.
    file = config(tokenizer=str(Path('books/00.txt').absolute()))  # has its own
    assert len({module.corpus_folder(file, 'digest', sentinels) for sentinels in (None, 0, 3)}) == 1
    Path('00.model').write_bytes(b'')  # A .model file is read with T5's sentinels.
    file = dataclasses.replace(file, tokenizer='00.model')
    assert len({module.corpus_folder(file, 'digest', sentinels) for sentinels in (None, 0, 3)}) == 2
    read = set(deciding) | {'source', 'cache', 'processes'}
    assert read <= {field.name for field in dataclasses.fields(DataConfig)}
