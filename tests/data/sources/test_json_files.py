"""Tests of values read from JSON files, and of errors that name line and field."""

import gzip
import json

import pytest

from efficient_attention.data.sources.json_files import (
    check_json_type,
    check_unique_ids,
    json_documents,
    read_json,
    read_json_lines,
    typed_json_field,
)
from efficient_attention.errors import InputError


def test_rows_with_their_lines(tmp_path):
    path = tmp_path / 'rows.jsonl'
    path.write_text('{"a": 1}\n\n[2]\n')
    assert list(read_json_lines(path)) == [({'a': 1}, f'{path}: line 1'), ([2], f'{path}: line 3')]


def test_packed_json(tmp_path):
    path = tmp_path / 'rows.json.gz'
    path.write_bytes(gzip.compress('{"a": "é"}'.encode()))
    assert read_json(path) == {'a': 'é'}


def test_what_is_no_json_is_named(tmp_path):
    path = tmp_path / 'rows.jsonl'
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(InputError, match=r'rows\.jsonl: line 2: not JSON'):
        list(read_json_lines(path))


@pytest.mark.parametrize(
    'row, kind, message',
    [
        ([], int, 'here: not a JSON object'),
        ({'b': 1}, int, "here: no field 'a'; known: b"),
        ({'a': 'x'}, int, "here: field 'a' is a text, not a whole number"),
        ({'a': True}, int, "here: field 'a' is true, not a whole number"),
        ({'a': 1}, bool, "here: field 'a' is a whole number, not true or false"),
        ({'a': None}, list, "here: field 'a' is null, not a list"),
        ({'a': 'x\ud800'}, str, "here: field 'a' holds half of a surrogate pair"),
    ],
)
def test_what_a_field_may_not_be(row, kind, message):
    with pytest.raises(InputError) as error:
        typed_json_field(row, 'a', kind, 'here')
    assert message in str(error.value)


def test_values_and_defaults():
    assert typed_json_field({'a': 3}, 'a', int, 'here') == 3
    assert typed_json_field({}, 'a', int, 'here', default=None) is None
    assert check_json_type({'b': 1}, dict, 'here') == {'b': 1}


def test_an_identifier_twice():
    check_unique_ids([('a', 'one'), ('b', 'two')])
    with pytest.raises(InputError, match="three: field 'id' is the same as in one"):
        check_unique_ids([('a', 'one'), ('b', 'two'), ('a', 'three')])


def test_json_rows_plain_and_packed(tmp_path):
    lines = '\n'.join(json.dumps({'id': i, 'text': f'tëxt {i}\nsecond line'}) for i in range(3)) + '\n\n'
    (tmp_path / 'a.jsonl').write_text(lines)
    (tmp_path / 'b.jsonl.gz').write_bytes(gzip.compress(lines.encode()))
    expected = [f'tëxt {i}\nsecond line' for i in range(3)]
    assert list(json_documents([tmp_path / 'a.jsonl', tmp_path / 'b.jsonl.gz'], 'text')) == expected * 2


@pytest.mark.parametrize(
    'line, fault',
    [
        ('{"text": "x"', 'not JSON'),
        ('[' * 100_000, 'not JSON'),
        ('["text"]', 'not a JSON object'),
        ('{"title": "x", "body": 1}', "no field 'text'; known: title, body"),
        ('{"text": 5}', "field 'text' is a whole number, not a text"),
        ('{"text": null}', "field 'text' is null, not a text"),
        (r'{"text": "half \ud83d"}', 'half of a surrogate pair'),
    ],
)
def test_a_bad_json_row_is_named_by_file_and_line(tmp_path, line, fault):
    path = tmp_path / 'rows.jsonl'
    path.write_text('{"text": "good"}\n\n' + line + '\n')
    with pytest.raises(InputError) as caught:
        list(json_documents([path], 'text'))
    message = str(caught.value)
    assert f'{path}: line 3: ' in message and fault in message and '\n' not in message
