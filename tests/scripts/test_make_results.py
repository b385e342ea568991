"""Tests the pages of measurements: generated from their JSON, up to date, and refused if a field is wrong."""

import json
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from scripts.make_results import RESULTS, format_page, format_table

SECTION = {
    'title': 'Speed',
    'says': ['Twice as fast.', 'On one core.'],
    'runs': [{'when': '2026-01-02, jax 0.10.2, one core', 'commands': ['.venv/bin/python eval.py --workdir runs/a']}],
    'tables': [{'caption': 'Steps a second:', 'columns': ['side', 'speed'], 'rows': [['a | b', 1.5], ['full', 0.75]]}],
    'pictures': [{'file': 'docs/images/arena.svg', 'shows': 'Speeds'}],
}
PAGE = {'title': 'Measured', 'about': 'How fast it is.', 'guide': 'attention.md', 'sections': [SECTION]}


def text_of(folder: Path, page: dict) -> str:
    (folder / 'speed.json').write_text(json.dumps(page), encoding='utf-8')
    return format_page(folder / 'speed.json')


@pytest.mark.parametrize('source', sorted(RESULTS.glob('*.json')), ids=lambda path: path.name)
def test_a_page_is_what_its_json_says(source: Path):
    assert source.with_suffix('.md').read_text(encoding='utf-8') == format_page(source), (
        'stale: run .venv/bin/python scripts/make_results.py'
    )


def test_every_page_has_its_json():
    assert {path.stem for path in RESULTS.glob('*.md')} == {path.stem for path in RESULTS.glob('*.json')}


def test_what_a_page_says(tmp_path: Path):
    _, _, _, *section = text_of(tmp_path, PAGE).split('\n\n')
    assert section == [
        '## Speed',
        'Twice as fast.',
        'On one core.',
        'Steps a second:',
        '| side | speed |\n| --- | --- |\n| a \\| b | 1.5 |\n| full | 0.75 |',
        '![Speeds](../images/arena.svg)',
        '```bash\n# 2026-01-02, jax 0.10.2, one core\n.venv/bin/python eval.py --workdir runs/a\n```\n',
    ]


def test_a_table_of_trained_cells():
    [name] = [path for path in (RESULTS / 'data').glob('arena_recall.json')]
    columns = json.loads(name.read_text(encoding='utf-8'))['cells']['recall']
    text = format_table('a section', {'grid': name.name, 'rows': ['recall']})
    assert all(f'| {column} | ' in text for column in columns) and '#' not in text
    assert 'steps/s' in text and 'steps/s' not in format_table(
        'a section', {'grid': name.name, 'rows': ['recall'], 'speed': False}
    )


def test_a_measured_part_needs_no_runs(tmp_path: Path, monkeypatch):
    """A part without a file says so; with a file, the section has the date and the command of the measurement."""
    monkeypatch.setattr('scripts.make_results.RESULTS', tmp_path)
    page = PAGE | {'sections': [{'title': 'Decoding', 'tables': [{'measured': 'gpu/decoding.json'}]}]}
    assert 'Not yet measured.' in text_of(tmp_path, page)
    case = {'group': 'context 8', 'side': 'causal', 'is_peer': False, 'milliseconds': 2.5}
    machine = {'device': 'NVIDIA H200', 'count': 1, 'jax': '0.11.2'}
    report = {'part': 'decoding', 'machine': machine, 'commit': 'abc', 'date': '2026-01-02', 'is_dry_run': False}
    (tmp_path / 'data' / 'gpu').mkdir(parents=True)
    (tmp_path / 'data' / 'gpu' / 'decoding.json').write_text(
        json.dumps(report | {'cases': {'context 8: causal': case}})
    )
    text = text_of(tmp_path, page)
    assert '| context 8 | causal | 2.5 |' in text and '# 2026-01-02, NVIDIA H200' in text


@pytest.mark.parametrize(
    ('change', 'line'),
    [
        ({'titel': 'a'}, "speed.json: section 'Speed' has the unknown field 'titel'"),
        ({'runs': None}, "speed.json: section 'Speed' needs either runs (measured here) or source"),
        ({'source': 'A paper'}, "speed.json: section 'Speed' needs either runs"),
        ({'tables': [{'measured': 'gpu/none.json'}]}, "speed.json: section 'Speed' needs either runs"),
        ({'tables': [{'columns': ['a'], 'rows': [[1, 2]]}]}, 'has a row of 2 entries under 1 columns: [1, 2]'),
    ],
)
def test_a_wrong_section_is_refused(tmp_path: Path, change: dict, line: str):
    section = {name: value for name, value in (SECTION | change).items() if value is not None}
    with pytest.raises(InputError) as error:
        text_of(tmp_path, PAGE | {'sections': [section]})
    assert line in str(error.value)


def test_a_page_without_title_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="speed.json lacks the field 'title'"):
        text_of(tmp_path, {name: value for name, value in PAGE.items() if name != 'title'})
