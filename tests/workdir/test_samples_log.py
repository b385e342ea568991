"""Tests the log of samples: appended, cut at a restart, and read from damaged files."""

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.samples_log import FILE_NAME, append_samples, read_samples, remove_samples_after

ONE = [{'input': 'a \u2028 b', 'output': 'c'}]


def test_a_restart_removes_later_steps_and_the_last_line_of_a_step_counts(tmp_path):
    remove_samples_after(tmp_path, 0)
    assert read_samples(tmp_path) == [] and not (tmp_path / FILE_NAME).exists()
    for step in (10, 20, 30):
        append_samples(tmp_path, step, 'old', ONE)
    remove_samples_after(tmp_path, 20)
    append_samples(tmp_path, 20, 'new', ONE)
    assert [(line['step'], line['kind']) for line in read_samples(tmp_path)] == [(10, 'old'), (20, 'new')]
    assert read_samples(tmp_path)[0]['samples'] == ONE


@pytest.mark.parametrize(
    'line',
    [
        '{',
        '[]',
        '{"step": "1", "kind": "", "samples": []}',
        '{"step": 1, "kind": "x", "samples": [{"a": "b"}]}',
        '\x00',
    ],
)
def test_damaged_lines_are_left_out(tmp_path, line):
    (tmp_path / FILE_NAME).write_text(line + '\n')
    append_samples(tmp_path, 5, 'good', ONE)
    assert [found['step'] for found in read_samples(tmp_path)] == [5]


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(InputError, match='cannot be read'):
        read_samples(tmp_path)
    with pytest.raises(InputError, match='cannot be written'):
        append_samples(tmp_path, 1, 'x', ONE)
