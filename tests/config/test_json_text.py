"""JSON of unknown origin: a value, or one kind of error."""

import os
from pathlib import Path

import pytest

from efficient_attention.config.json_text import parse_json, read_json_file


def test_a_text_and_a_file_give_the_same_value(tmp_path: Path):
    (tmp_path / 'x.json').write_text('{"a": [1, "é"]}', encoding='utf-8')
    assert read_json_file(tmp_path / 'x.json') == parse_json('{"a": [1, "é"]}') == {'a': [1, 'é']}


@pytest.mark.parametrize('text', ['', '{', '[' * 1_000_000, '{"a":' * 1_000_000, b'\xff\xfe\xff', '9' * 5000])
def test_what_is_no_json_is_a_value_error(text: str | bytes):
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(ValueError, match='not a file'):
        read_json_file(tmp_path / 'pipe')
    with pytest.raises(FileNotFoundError):
        read_json_file(tmp_path / 'none')
    with pytest.raises(IsADirectoryError):
        read_json_file(tmp_path)
