"""Tests of sources given as short texts such as `text:FILE`, and of the documents that they give."""

import gzip
import json

import pytest
from array_record.python import array_record_module

from efficient_attention.data.sources import text_source as source_file
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.errors import InputError

FRONT_MATTER = '---\ntitle: A title\ndate: 1900\n---\n'


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documents(text):
    return list(open_source(text).documents())


def test_a_file_is_a_document(inside):
    (inside / 'b').mkdir()
    (inside / 'b' / 'two.md').write_text(f'{FRONT_MATTER}# Two\n\n---\n\nText of two.')
    (inside / 'b' / 'three.md.gz').write_bytes(gzip.compress(f'{FRONT_MATTER}Three.'.encode()))
    (inside / 'a.txt').write_text(f'{FRONT_MATTER}One.')
    (inside / 'empty.txt').write_text(' \n')
    assert documents('text:**/*.*') == [f'{FRONT_MATTER}One.', 'Three.', '# Two\n\n---\n\nText of two.']
    assert documents('text:*.txt,b/*.md') == [f'{FRONT_MATTER}One.', '# Two\n\n---\n\nText of two.']


def test_a_markdown_rule_is_no_front_matter(inside):
    (inside / 'a.md').write_text('# Title\n\n---\nBody\n\n---\nMore\n')
    assert documents('text:a.md') == ['# Title\n\n---\nBody\n\n---\nMore\n']


def test_paragraphs_are_documents(inside):
    text = 'First line\nsecond line.\n\n \t\n\nNext.\r\n\r\nLast\n'
    (inside / 'a.txt').write_bytes(text.encode())
    (inside / 'b.md').write_text(f'{FRONT_MATTER}\nOne.\n\nTwo.')
    assert documents('text:a.txt#paragraphs') == ['First line\nsecond line.', 'Next.', 'Last']
    assert documents('text:b.md#paragraphs') == ['One.', 'Two.']


def test_rows_and_records(inside):
    (inside / 'rows.jsonl').write_text('\n'.join(json.dumps({'body': text}) for text in ['one', ' ', 'two']))
    writer = array_record_module.ArrayRecordWriter('records.ar', 'group_size:1')
    writer.write(b'three')
    writer.close()
    assert documents('jsonl:*.jsonl#body') == ['one', 'two']
    assert documents('arrayrecord:*.ar') == ['three']


def test_documents_can_be_read_again_and_again(inside):
    (inside / 'a.txt').write_text('One.\n\nTwo.')
    source = open_source('text:a.txt#paragraphs')
    assert list(source.documents()) == list(source.documents()) == ['One.', 'Two.']


def test_the_digest_follows_content_and_way_of_reading(inside):
    (inside / 'a.txt').write_text('One.\n\nTwo.')
    before = open_source('text:*.txt').digest()
    assert open_source('text:./a.txt').digest() == before
    assert open_source('text:a.txt#paragraphs').digest() != before
    assert open_source('jsonl:a.txt#x').digest() != open_source('jsonl:a.txt#y').digest()
    (inside / 'a.txt').write_text('One.\n\nTw0.')
    assert open_source('text:*.txt').digest() != before


@pytest.mark.parametrize(
    'text, asked',
    [
        ('tfds:wiki#text', ('wiki', 'train', 'text')),
        ('tfds:wiki', ('wiki', 'train', '')),
        ('tfds:wiki:test#text', ('wiki', 'test', 'text')),
        ('tfds:wiki/2023.en:1.0.0:train[:10%]#text', ('wiki/2023.en:1.0.0', 'train[:10%]', 'text')),
        ('tfds:wiki/2023.en:1.0.0#text', ('wiki/2023.en:1.0.0', 'train', 'text')),
    ],
)
def test_names_and_splits_of_tfds(monkeypatch, text, asked):
    monkeypatch.setattr(source_file, 'tfds_documents', lambda *arguments: iter([str(arguments)]))
    source = open_source(text)
    assert list(source.documents()) == [str(asked)]
    assert source.digest() == open_source(text).digest()


@pytest.mark.parametrize('text', ['web:x', 'stdlib:x', 'text', '', 'Stdlib'])
def test_an_unknown_kind_lists_the_known_ones(text):
    with pytest.raises(InputError) as caught:
        open_source(text)
    message = str(caught.value)
    assert repr(text) in message and '\n' not in message
    assert all(kind in message for kind in ('stdlib', 'text:', 'jsonl:', 'arrayrecord:', 'tfds:'))


@pytest.mark.parametrize(
    'text, fault',
    [
        ('text:*.none', "no file matches '*.none'"),
        ('text:a.txt,*.none', "no file matches '*.none'"),
        ('text:a.txt#lines', '#lines is unknown; known: #paragraphs'),
        ('jsonl:a.txt', 'the field is missing'),
        ('tfds:wiki#', 'name or field is missing'),
        ('tfds:#text', 'name or field is missing'),
    ],
)
def test_what_is_wrong_is_said_in_one_line(inside, text, fault):
    (inside / 'a.txt').write_text('One.')
    with pytest.raises(InputError) as caught:
        open_source(text)
    message = str(caught.value)
    assert repr(text) in message and fault in message and '\n' not in message
