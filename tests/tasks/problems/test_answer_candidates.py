import json

import pytest

from efficient_attention.tasks.problems.answer_candidates import EMPTY, Candidate, rank_candidates, write_answers

CAT, DOG, OTHER_CAT = (
    Candidate('cat', 0, 3, 4.0, 2.0),
    Candidate('dog', 4, 7, 1.0, 4.0),
    Candidate('cat', 8, 11, 0.0, 1.0),
)
NULL = Candidate('', 0, 0, 1.0, 4.5)


def test_each_text_once_with_its_best_score():
    prediction = rank_candidates([OTHER_CAT, DOG, CAT], None, 20)
    assert [(one.text, one.start) for one in prediction.candidates] == [('cat', 0), ('dog', 4)]
    chances = [one.probability for one in prediction.candidates]
    assert chances == pytest.approx([1 / (1 + 2.718281828459045**-1), 1 / (1 + 2.718281828459045)])
    assert prediction.null_odds is None and prediction.best_or_no_answer(-1e9).text == 'cat'


def test_no_answer_is_one_of_the_candidates():
    prediction = rank_candidates([DOG, CAT], NULL, 20)
    assert [one.text for one in prediction.candidates] == ['cat', '', 'dog']
    assert prediction.null_odds == pytest.approx(5.5 - 6.0)
    assert (
        prediction.best_or_no_answer(0.0).text,
        prediction.best_or_no_answer(-0.5).text,
        prediction.best_or_no_answer(-0.6).text,
    ) == (
        'cat',
        'cat',
        '',
    )
    assert sum(one.probability for one in prediction.candidates) == pytest.approx(1.0)
    assert prediction.best_or_no_answer(-0.6).probability == prediction.candidates[1].probability


def test_few_candidates_are_kept_and_no_answer_with_them():
    assert [one.text for one in rank_candidates([DOG, CAT], NULL, 1).candidates] == ['cat', '']
    assert [one.text for one in rank_candidates([DOG, CAT], None, 1).candidates] == ['cat']


def test_nothing_to_choose_from():
    assert (
        rank_candidates([], None, 3).best_answer == EMPTY
        and rank_candidates([], None, 3).best_or_no_answer(0.0).text == ''
    )
    prediction = rank_candidates([], NULL, 3)
    assert prediction.null_odds == NULL.logit_sum and prediction.best_or_no_answer(9.0) == EMPTY
    assert [one.text for one in prediction.candidates] == ['']


def test_files(tmp_path):
    paths = write_answers(
        ['q1', 'q2'], [rank_candidates([CAT, DOG], NULL, 3), rank_candidates([DOG], NULL, 3)], 0.0, tmp_path / 'new'
    )
    predictions, best, odds = (json.loads(path.read_text()) for path in paths)
    assert [path.name for path in paths] == ['predictions.json', 'nbest_predictions.json', 'null_odds.json']
    assert predictions == {'q1': 'cat', 'q2': ''}
    assert odds == {'q1': pytest.approx(-0.5), 'q2': pytest.approx(0.5)}
    assert [one['text'] for one in best['q1']] == ['cat', '', 'dog']
    assert list(best['q1'][0]) == ['text', 'probability', 'start_logit', 'end_logit']
    assert len(write_answers(['q1'], [rank_candidates([CAT], None, 3)], 0.0, tmp_path)) == 2
