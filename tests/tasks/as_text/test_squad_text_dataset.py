"""Tests of SQuAD as text: the source is question and context, and the official metrics compare all answers."""

import json
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.squad_text_dataset import make_squad_text_dataset
from efficient_attention.tasks.metrics.squad import squad2_scores, squad_scores

ANSWERS = [['the mat', 'mat', 'mat'], ['a cat'], []]
QUESTIONS = [
    {
        'id': str(number),
        'question': f'what {number}?',
        'context': 'a cat sat on the mat',
        'answers': [{'text': text, 'answer_start': 0} for text in answers],
    }
    for number, answers in enumerate(ANSWERS)
]


def set_of(folder: Path, count: int, selection: str = ''):
    lines = [json.dumps(question) for question in QUESTIONS[:count]]
    (folder / 'q.jsonl').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    text = f'{folder}/q.jsonl{selection}'
    return make_squad_text_dataset(f'squad:{text}', 'pairs.held_out', text)


def test_sources_and_targets(tmp_path: Path):
    pairs = list(set_of(tmp_path, 3).read_pairs())
    assert pairs[0].source == 'question: what 0? context: a cat sat on the mat'
    # The target is the most frequent answer.
    assert [pair.target for pair in pairs] == ['mat', 'a cat', 'unanswerable']


def test_an_answer_is_compared_with_all_answers(tmp_path: Path):
    one = set_of(tmp_path, 2)
    found = one.scores(one.examples, ['The mat!', 'a black cat'])
    assert found == squad_scores(['The mat!', 'a black cat'], ANSWERS[:2])
    assert found['exact_match'] == 0.5 and found['f1'] == pytest.approx((1 + 2 / 3) / 2)


def test_questions_without_an_answer_are_scored_as_version_2(tmp_path: Path):
    one = set_of(tmp_path, 3)
    found = one.scores(one.examples, ['mat', 'cat', ' unanswerable'])
    assert found == squad2_scores(['mat', 'cat', ''], ANSWERS) and found['exact'] == 1.0 == found['NoAns_f1']
    assert one.scores(one.examples, ['mat', 'cat', 'a dog'])['NoAns_exact'] == 0.0


def test_selections_are_part_of_the_digest(tmp_path: Path):
    first = set_of(tmp_path, 3, '#first:1')
    assert len(list(first.read_pairs())) == 1 and first.digest() != set_of(tmp_path, 3).digest()
    assert first.digest() == set_of(tmp_path, 3, '#first:1').digest() != set_of(tmp_path, 2, '#first:1').digest()


def test_no_file_is_named():
    with pytest.raises(InputError, match=r"^pairs.train has the set 'squad:'; it is squad:<files>$"):
        make_squad_text_dataset('squad:', 'pairs.train', '')
