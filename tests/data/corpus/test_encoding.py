"""Tests that documents become the same sentences of ids however the work is divided."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.corpus.encoding import encode_documents
from efficient_attention.data.corpus.sentence_splitting import split_sentences
from efficient_attention.data.tokenizers.training import train_tokenizer
from efficient_attention.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    f'Title {number}\n\n'
    + '\n\n'.join(f'Paragraph {i} of {number}. It has two sentences.' for i in range(number * 7 % 40))
    for number in range(30)
]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    trained = train_tokenizer('wordpiece', lambda: DOCUMENTS, vocab_size=150, lowercase=True)
    path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.json'
    trained.save(str(path))
    return trained, str(path)


def joined(results):
    """Returns a dict from each document's number to its sentence lengths and ids, joined over all its pieces."""
    documents = {}
    for encoded in results:
        lengths, ids = documents.setdefault(encoded.document, ([], []))
        lengths.extend(encoded.lengths.tolist())
        ids.extend(encoded.ids.tolist())
    return documents


def test_ids_are_those_of_the_sentences(tokenizer):
    trained, path = tokenizer
    results = joined(encode_documents(DOCUMENTS, path, 1))
    assert list(results) == list(range(len(DOCUMENTS)))
    for number, text in enumerate(DOCUMENTS):
        expected = [trained.encode(one, add_special_tokens=False).ids for one in split_sentences(text)]
        lengths, ids = results[number]
        assert lengths == [len(one) for one in expected]
        assert ids == [id for one in expected for id in one]


def test_the_work_may_be_cut_up_in_any_way(tokenizer):
    _, path = tokenizer
    expected = joined(encode_documents(DOCUMENTS, path, 1))
    for section, batch in [(1, 1), (50, 200), (10_000, 10)]:
        results = list(encode_documents(DOCUMENTS, path, 1, batch=batch, section=section))
        assert joined(results) == expected
        assert sum(encoded.characters for encoded in results) == sum(map(len, DOCUMENTS))


def test_several_processes_give_the_same_in_the_same_order(tokenizer):
    _, path = tokenizer
    alone, together = (list(encode_documents(iter(DOCUMENTS), path, count, batch=500)) for count in (1, 2))
    assert len(alone) == len(together)
    for one, other in zip(alone, together, strict=True):
        assert (one.document, one.characters) == (other.document, other.characters)
        assert np.array_equal(one.lengths, other.lengths) and np.array_equal(one.ids, other.ids)
    assert not multiprocessing.active_children()


def test_an_abandoned_reader_stops_its_processes(tokenizer):
    _, path = tokenizer
    results = encode_documents(DOCUMENTS * 20, path, 2, batch=100)
    next(results)
    results.close()
    assert not multiprocessing.active_children()


def test_the_reader_waits_for_the_work(tokenizer):
    """The reader stays only a little ahead of the encoder, so that a source need not fit into memory."""
    _, path = tokenizer
    read = []
    results = encode_documents((read.append(text) or text for text in DOCUMENTS * 20), path, 2, batch=100)
    next(results)
    assert len(read) < 0.2 * len(DOCUMENTS * 20)
    results.close()


def test_names_of_special_tokens_in_a_text_are_text(tmp_path):
    texts = ['The marks [CLS] and [MASK] and [PAD]<pad> are text here, <unk> too. [SEP]'] * 5
    for kind in ('wordpiece', 'unigram', 'bpe'):
        path = str(tmp_path / f'{kind}.json')
        train_tokenizer(kind, lambda: texts, vocab_size=350, lowercase=True).save(path)
        (encoded,) = encode_documents(texts[:1], path, 1)
        assert not set(encoded.ids.tolist()) & {0, 2, 3, 4}


def test_sentences_without_tokens_are_left_out(tokenizer):
    _, path = tokenizer
    (encoded,) = encode_documents(['It has two.\n\n\u200b\u200b\n\nIt has two.\n\n\x00'], path, 1)
    assert len(encoded.lengths) == 2 and (encoded.lengths > 0).all() and encoded.lengths.sum() == len(encoded.ids)
    (empty,) = encode_documents(['\u200b'], path, 1)
    assert len(empty.lengths) == len(empty.ids) == 0


def kill_a_worker_while(texts):
    for number, text in enumerate(texts):
        if number == 20:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
            time.sleep(0.2)
        yield text


def test_a_worker_that_dies_is_one_line(tokenizer):
    _, path = tokenizer
    with pytest.raises(InputError, match='a process that prepares the corpus died') as caught:
        list(encode_documents(kill_a_worker_while(DOCUMENTS), path, 2, batch=10))
    assert '\n' not in str(caught.value)


PROGRAM = """
import multiprocessing, sys, time
from efficient_attention.data.corpus import encoding
if __name__ == '__main__':
    results = encoding.encode_documents(['Some words.'] * 1000, sys.argv[1], 2, batch=10)
    next(results)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def is_alive(pid):
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path('/proc/self/stat').exists(), reason='looks at processes through /proc')
def test_a_killed_parent_leaves_no_workers(tokenizer, tmp_path):
    _, path = tokenizer
    script = tmp_path / 'script.py'
    script.write_text(PROGRAM)
    environment = os.environ | {'PYTHONPATH': str(ROOT)}
    parent = subprocess.Popen([sys.executable, script, path], stdout=subprocess.PIPE, text=True, env=environment)
    workers = parent.stdout.readline().split()
    parent.kill()
    parent.communicate()
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
