"""Tests that JSON of unknown origin gives a value or a single kind of error."""

import os
from pathlib import Path

import pytest

from efficient_attention.config.json_parsing import parse_json, read_json_file


def test_a_text_and_a_file_give_the_same_value(tmp_path: Path):
    (tmp_path / 'x.json').write_text('{"a": [1, "é"]}', encoding='utf-8')
    assert read_json_file(tmp_path / 'x.json') == parse_json('{"a": [1, "é"]}') == {'a': [1, 'é']}


@pytest.mark.parametrize('text', ['', '{', '[' * 1_000_000, '{"a":' * 1_000_000, b'\xff\xfe\xff', '9' * 5000])
def test_what_is_no_json_is_a_value_error(text: str | bytes):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize(
    'text, fault',
    [
        ('', 'a value is missing at column 1'),
        ('{"a": NO}', 'a value is missing at column 7'),
        ('{"a": 1\n"b": 2}', 'a comma or a closing bracket is missing at line 2, column 1'),
        ('{"a" 1}', 'a colon is missing at column 6'),
        ('{a: 1}', 'a name in double quotes is missing at column 2'),
        ('{"a": 1} 2', 'text stands behind the end at column 10'),
        ('"a', 'a text has no closing quote at column 1'),
        ('"a\tb"', 'a text holds a line end or another control character at column 3'),
        (r'"\q"', 'a text holds a backslash with an unknown letter behind it at column 2'),
        (b'{"a": "\xff"}', 'byte 0xff at offset 7 is not UTF-8'),
        ('9' * 5000, 'a number has too many digits'),
        ('[' * 100_000, 'nested too deeply'),
    ],
)
def test_a_fault_is_said_in_plain_words(text: str | bytes, fault: str):
    with pytest.raises(ValueError) as caught:
        parse_json(text)
    assert str(caught.value) == fault


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(ValueError, match='not a file'):
        read_json_file(tmp_path / 'pipe')
    with pytest.raises(FileNotFoundError):
        read_json_file(tmp_path / 'none')
    with pytest.raises(IsADirectoryError):
        read_json_file(tmp_path)
