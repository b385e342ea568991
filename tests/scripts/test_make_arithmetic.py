"""Tests the arithmetic problems of scripts/make_arithmetic.py: right answers, GPT-3's wording, no test problem."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.errors import InputError
from scripts import make_arithmetic

ROWS = {'two_digit_addition': 1200}  # of 2,400; the other files have 300


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr('sys.argv', ['make_arithmetic.py', *map(str, arguments)])
    make_arithmetic.main()


def write_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: object
) -> dict[str, list[dict[str, str]]]:
    """Runs the script; returns the rows of each file."""
    run_script(monkeypatch, '--output', tmp_path / 'out', '--rows', 2400, *arguments)
    return {
        path.stem: [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
        for path in sorted((tmp_path / 'out').iterdir())
    }


@pytest.mark.parametrize(
    ('question', 'key'),
    [
        ('Q: What is 98 plus 45?', ('+', '45', '98')),
        ('Q: What is 5 minus 12?', ('-', '5', '12')),
        ('Q: What is (9 - 8) * 2?', ('-', '8', '9', '*', '2')),
        ('Q: What is 12 times 5?', None),
    ],
)
def test_a_problem_is_the_same_with_its_first_numbers_swapped(question: str, key: tuple[str, ...] | None):
    assert make_arithmetic.problem_key(question) == key


def test_every_answer_is_right_and_every_row_has_its_kind(tmp_path: Path, monkeypatch, capsys):
    files = write_problems(monkeypatch, tmp_path)
    assert list(files) == sorted(make_arithmetic.KINDS)
    for kind, rows in files.items():
        assert len(rows) == ROWS.get(kind, 300)
        for row in rows:
            [asked] = re.fullmatch(r'\n\nQ: What is (.+)\?\n\nA:', row['context']).groups()
            expression = asked.replace('plus', '+').replace('minus', '-')
            assert row['completion'] == f' {eval(expression)}'
            assert row['text'].endswith(row['context'] + row['completion'])
        problems = {row['context'] + row['completion'] for row in rows}
        texts = [re.findall(r'\n\nQ:.*?\n\nA: .*?(?=\n|$)', row['text']) for row in rows]
        assert all(
            ''.join(text) == row['text'] and set(text) <= problems for text, row in zip(texts, rows, strict=True)
        )
        assert 0.8 < np.mean([len(text) == 1 for text in texts]) < 0.97 and max(map(len, texts)) == 9
        numbers = [int(one) for row in rows for one in re.findall(r'\d+', row['context'])]
        assert max(numbers) == {'two': 99, 'sin': 9}.get(kind[:3], max(numbers)) and min(numbers) < 10
    assert max(int(row['completion']) for row in files['three_digit_addition']) > 1500
    assert min(int(row['completion']) for row in files['two_digit_subtraction']) < -50
    report = json.loads(capsys.readouterr().out)
    assert report['test_problems'] == 0 and report['different']['single_digit_three_ops'] > 200


def test_no_row_has_a_problem_of_the_test_files(tmp_path: Path, monkeypatch, capsys):
    rng, path = np.random.default_rng(3), tmp_path / 'test.jsonl'
    asked = [f'{first} plus {second}' for first, second in rng.integers(100, size=(5000, 2))]
    asked += [f'({a} * {b}) + {c}' for a, b, c in rng.integers(10, size=(500, 3))]
    lines = [json.dumps({'context': f'\n\nQ: What is {one}?\n\nA:', 'completion': ' 0'}) for one in asked]
    path.write_text('\n'.join(lines), encoding='utf-8')
    files = write_problems(monkeypatch, tmp_path, '--without', path)
    left_out = {make_arithmetic.problem_key(f'What is {one}?') for one in asked}
    assert json.loads(capsys.readouterr().out)['test_problems'] == len(left_out) > 3000
    rows = [row for rows in files.values() for row in rows]
    assert not {make_arithmetic.problem_key(row['context']) for row in rows} & left_out
    asked = {one for row in rows for one in re.findall('What is .*?[?]', row['text'])}
    assert not {make_arithmetic.problem_key(one) for one in asked} & left_out


def test_the_seed_decides_the_rows(tmp_path: Path, monkeypatch):
    first, again, other = (
        write_problems(monkeypatch, tmp_path / name, *seed)
        for name, seed in (('a', ()), ('b', ()), ('c', ('--seed', 1)))
    )
    assert first == again and not any(first[kind] == other[kind] for kind in first)


@pytest.mark.parametrize(
    ('arguments', 'line'),
    [
        (('--rows', 0), '--rows is 0'),
        (('--without', 'TEST'), "--without '.*test.jsonl': no context has a question such as"),
        (('--without', 'missing.jsonl'), 'missing.jsonl'),
    ],
)
def test_bad_flags_are_refused(tmp_path: Path, monkeypatch, arguments: tuple[object, ...], line: str):
    (path := tmp_path / 'test.jsonl').write_text('{"context": "What is the sum of 3 and 4?"}\n', encoding='utf-8')
    words = [path if one == 'TEST' else one for one in arguments]
    with pytest.raises(InputError, match=line):
        run_script(monkeypatch, '--output', tmp_path / 'out', *words)
    assert not (tmp_path / 'out').exists()


def test_an_output_that_is_a_file_is_one_line_and_stays(tmp_path: Path, monkeypatch):
    (file := tmp_path / 'notes').write_text('mine', encoding='utf-8')
    with pytest.raises(InputError, match=r'^.*notes/two_digit_addition.jsonl: cannot be written'):
        run_script(monkeypatch, '--output', file, '--rows', 8)
    assert file.read_text(encoding='utf-8') == 'mine'
