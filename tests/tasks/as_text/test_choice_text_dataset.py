"""Tests of multiple choice as text: numbered choices, the number as the answer, and accuracy."""

import json
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.choice_text_dataset import make_choice_text_dataset

CODAH = 'o\tI am\ta cat\ta dog\ta bird\ta fish\t1\no\tYou are\ti\tj\tk\tl\t3\n'
ROW = {'story': 'It rained.', 'asked': 'Who is wet?', 'choices': ['Ann', 'Bob'], 'label': 1}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding='utf-8')
    return path


def test_sources_targets_and_accuracy(tmp_path: Path):
    path = written(tmp_path / 'a.tsv', CODAH)
    one = make_choice_text_dataset('', 'pairs.held_out', f'swag:{path}')
    first, second = one.read_pairs()
    assert first.source == 'swag choice1: a cat choice2: a dog choice3: a bird choice4: a fish context: I am'
    assert (first.target, second.target) == ('choice2', 'choice4')
    assert one.scores(one.examples, ['choice 2', 'choice4']) == {'accuracy': 1.0}
    assert one.scores(one.examples, ['a dog', 'choice5']) == {'accuracy': 0.0}


def test_tables_name_their_columns(tmp_path: Path):
    path = written(tmp_path / 'a.jsonl', json.dumps(ROW) + '\n')
    one = make_choice_text_dataset('', 'pairs.train', f'table:{path}#story,asked')
    [pair] = one.read_pairs()
    assert pair.source == 'choices question: Who is wet? choice1: Ann choice2: Bob context: It rained.'
    assert pair.target == 'choice2' and one.name == 'choices'
    assert one.scores(one.examples, ['choice1']) == {'accuracy': 0.0}
    before = one.digest()
    written(path, json.dumps(ROW | {'label': 0}) + '\n')
    assert one.digest() != before


def test_a_question_without_an_answer_is_named(tmp_path: Path):
    row = {name: value for name, value in ROW.items() if name != 'label'} | {'text': 'x'}
    path = written(tmp_path / 'a.jsonl', json.dumps(row) + '\n')
    with pytest.raises(InputError, match='line 1: no label or answer, which pairs.test needs'):
        list(make_choice_text_dataset('', 'pairs.test', f'table:{path}').read_pairs())


@pytest.mark.parametrize(
    'rest, said',
    [
        ('quiz:a.tsv', r'it is choices:<swag\|race\|table>:<files>'),
        ('swag:', 'it is choices'),
        ('table:a.tsv#a,b,c', 'it is choices'),
        ('table:a.tsv#a,', 'it is choices'),
        ('swag:a.tsv#a', 'only choices:table has columns to name'),
    ],
)
def test_other_forms_are_refused_by_the_field(rest: str, said: str):
    with pytest.raises(InputError, match=rf"^pairs.train has the set 'choices:{rest}'; {said}"):
        make_choice_text_dataset(f'choices:{rest}', 'pairs.train', rest)
