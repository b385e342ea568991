import json
import random
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.squad import (
    best_threshold,
    choose_null_threshold,
    exact_and_f1,
    exact_and_f1_with_no_answer,
    normalize_answer,
    squad2_scores,
    squad_scores,
    token_overlap_scores,
)

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / 'cache' / 'official_scripts'  # evaluate-v1.1.py and evaluate-v2.0.py of SQuAD
FIXTURES = Path(__file__).parent / 'fixtures'
DATA = ROOT / 'data' / 'squad'
THIRD = pytest.approx(2 / 3)


@pytest.mark.parametrize(
    'text, expected',
    [
        ('The Cat!', 'cat'),
        ('A  cat,\tan  owl\nand the dog', 'cat owl and dog'),
        ("O'Neil's", 'oneils'),
        ('an-other', 'another'),  # Punctuation is removed first, so no word 'an' is left.
        ('a.m.', 'am'),
        ('U.S. $5,000.00', 'us 500000'),
        ('“quoted” – yes…', '“quoted” – yes…'),  # Only ASCII punctuation is removed.
        ('a“the”', '“ ”'),  # Any character except letters, digits and underscore ends an article.
        ('a\u00a0cat\u2003the', 'cat'),
        ('ÄRGER İ ẞ', 'ärger i̇ ß'),
        ('the', ''),
        ('', ''),
        ('theatre antenna a1', 'theatre antenna a1'),
        ('naïve cafe\u0301', 'naïve cafe\u0301'),
    ],
)
def test_what_is_left_of_a_text(text, expected):
    assert normalize_answer(text) == expected


def test_overlap_counts_a_word_as_often_as_both_have_it():
    assert token_overlap_scores('red red cat', 'red cat cat') == (THIRD, THIRD, THIRD)
    assert token_overlap_scores('hat dog', 'dog') == (THIRD, 0.5, 1.0)
    assert token_overlap_scores('', '') == token_overlap_scores('cat', 'dog') == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    'prediction, golds, first, second',
    [
        ('The Cat!', ['cat'], (1, 1), (1, 1)),
        ('a dog', ['cat', 'hat dog'], (0, 2 / 3), (0, 2 / 3)),
        # Each metric takes its best gold answer separately.
        ('red cat', ['red', 'big red cat', 'cat red'], (0, 1), (0, 1)),
        ('', ['cat'], (0, 0), (0, 0)),
        ('the', ['a'], (1, 0), (1, 1)),  # Normalisation leaves both texts empty.
        ('the', ['cat', 'a'], (1, 0), (0, 0)),  # Version 2.0 drops the gold answer that becomes empty.
        ('cat', ['the', '!'], (0, 0), (0, 0)),
        ('', ['.'], (1, 0), (1, 1)),
    ],
)
def test_the_two_versions(prediction, golds, first, second):
    assert exact_and_f1(prediction, golds) == pytest.approx(first)
    assert exact_and_f1_with_no_answer(prediction, golds) == pytest.approx(second)


def test_questions_without_answer():
    assert exact_and_f1_with_no_answer('', []) == (1.0, 1.0)
    assert exact_and_f1_with_no_answer('cat', []) == (0.0, 0.0)
    with pytest.raises(InputError, match='needs examples.has_no_answer'):
        exact_and_f1('', [])


def test_scores_of_version_1():
    assert squad_scores(['cat', 'hat dog'], [['the cat'], ['dog']]) == {'exact_match': 0.5, 'f1': pytest.approx(5 / 6)}
    with pytest.raises(InputError, match='no question'):
        squad_scores([], [])


PREDICTIONS, GOLDS, ODDS = ['cat', 'hat dog', 'x', ''], [['cat'], ['dog'], [], []], [-2.0, 1.0, 0.0, 3.0]


def test_the_report_of_version_2():
    expected = {
        'exact': 1 / 2,
        'f1': (1 + 2 / 3 + 0 + 1) / 4,
        'total': 4,
        'HasAns_exact': 1 / 2,
        'HasAns_f1': (1 + 2 / 3) / 2,
        'HasAns_total': 2,
        'NoAns_exact': 1 / 2,
        'NoAns_f1': 1 / 2,
        'NoAns_total': 2,
    }
    assert squad2_scores(PREDICTIONS, GOLDS) == pytest.approx(expected)
    best = {'best_exact': 3 / 4, 'best_exact_thresh': -2, 'best_f1': 3 / 4, 'best_f1_thresh': -2}
    assert squad2_scores(PREDICTIONS, GOLDS, ODDS) == pytest.approx(expected | best)
    strict = squad2_scores(PREDICTIONS, GOLDS, ODDS, threshold=-2.0)
    assert (strict['exact'], strict['HasAns_exact'], strict['NoAns_exact']) == (3 / 4, 1 / 2, 1)


def test_a_report_has_no_part_without_questions():
    assert not any(name.startswith('NoAns') for name in squad2_scores(['cat'], [['cat']]))
    assert not any(name.startswith('HasAns') for name in squad2_scores([''], [[]]))


def test_the_chosen_threshold_gives_the_best_score_that_any_gives():
    rng = np.random.default_rng(0)
    for _ in range(20):
        odds = rng.integers(-3, 4, size=12).astype(float).tolist()  # Many odds are equal.
        golds = [[['cat'], ['red cat'], []][number] for number in rng.integers(0, 3, size=12)]
        predictions = [['cat', 'dog', ''][number] for number in rng.integers(0, 3, size=12)]
        chosen = choose_null_threshold(predictions, golds, odds)
        scores = {one: squad2_scores(predictions, golds, odds, threshold=one)['f1'] for one in [-9.0, *sorted(odds)]}
        assert squad2_scores(predictions, golds, odds, threshold=chosen)['f1'] == pytest.approx(max(scores.values()))
        assert chosen < min(odds) or all(scores[one] < max(scores.values()) for one in scores if one < chosen)


def test_the_best_threshold_where_no_answer_is_right():
    arrays = np.zeros(3), np.array([True, False, False]), np.array([True, True, True]), np.array([-4.0, -5.0, -6.0])
    # The official script returns 0, at which all three questions would be answered.
    assert best_threshold(*arrays) == (2 / 3, 0.0)
    assert choose_null_threshold(['x', 'x', 'x'], [['y'], [], []], [-4.0, -5.0, -6.0]) < -6


# ---- Tests against stored scores of the official scripts ----


def stored(name):
    return json.loads((FIXTURES / f'{name}.json').read_text(encoding='utf-8'))


def percentages(report):
    return {
        name: value if name.endswith(('total', 'thresh')) else pytest.approx(100 * value, abs=1e-9)
        for name, value in report.items()
    }


def test_version_1_equals_the_stored_scores():
    """Version 1 scores equal the official script's stored scores of 300 random predictions (squad_1.json).

    Script: evaluate-v1.1.py of GitHub's deeppavlov/stand_squad_en, commit ac074edecd13f62510a1292f1e53a4e39a734a31.
    """
    fixture = stored('squad_1')
    for text, golds, *scores in fixture['cases']:
        assert exact_and_f1(text, golds) == pytest.approx(tuple(scores), abs=1e-9), (text, golds)
    predictions, golds, *_ = zip(*fixture['cases'], strict=True)
    assert fixture['report'] == percentages(squad_scores(predictions, golds))


def test_version_2_equals_the_stored_scores():
    """With unanswerable questions and thresholds, scores equal the official ones of version 2 (squad_2.json).

    The first 100 questions have answers, the next 100 none. A report without a threshold is one without null odds.

    Script: evaluate-v2.0.py of GitHub's qwang70/bert, commit b3797fb734ea78fe7f51175ce71c0d57a1c3722f.
    """
    fixture = stored('squad_2')
    for text, golds, _, *scores in fixture['cases']:
        assert exact_and_f1_with_no_answer(text, golds) == pytest.approx(tuple(scores), abs=1e-9), (text, golds)
    for start, stop, threshold, report in fixture['reports']:
        predictions, golds, odds, *_ = zip(*fixture['cases'][start:stop], strict=True)
        arguments = (predictions, golds) if threshold is None else (predictions, golds, odds)
        options = {} if threshold is None else {'threshold': threshold}
        assert report == percentages(squad2_scores(*arguments, **options)), (start, stop, threshold)


# ---- Tests that run the official scripts ----

ALPHABET = [
    'a',
    'an',
    'the',
    'The',
    'cat',
    'Cat',
    'dog',
    "dog's",
    '$5',
    '5.0',
    '–',
    '“',
    'é',
    'e\u0301',
    'İ',
    '中国',
    '\u00a0',
]
ALPHABET += [
    '\u2003',
    '...',
    '_',
    'a_b',
    'a-b',
    '\t',
    '½',
    'ß',
    'ẞ',
    '(a)',
    'x²',
    '\u200b',
    'the\u0301',
    "'",
    '',
    '🙂',
    'ﬁ',
]


def drawn_text(rng):
    return rng.choice([' ', '', '  ', ' the ']).join(rng.choices(ALPHABET, k=rng.randint(0, 4)))


def official(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def write(folder, **contents):
    for name, content in contents.items():
        (folder / f'{name}.json').write_text(json.dumps(content))
    return [folder / f'{name}.json' for name in contents]


def data_of(golds):
    rows = [
        {'id': str(number), 'answers': [{'text': text} for text in answers]} for number, answers in enumerate(golds)
    ]
    return {'version': '1.1', 'data': [{'paragraphs': [{'qas': rows}]}]}


def by_id(ones):
    return {str(number): one for number, one in enumerate(ones)}


needs_scripts = pytest.mark.skipif(not SCRIPTS.exists(), reason='needs cache/official_scripts')


@pytest.mark.real
@needs_scripts
def test_version_1_equals_the_official_script(tmp_path):
    rng = random.Random(0)
    golds = [[drawn_text(rng) for _ in range(rng.randint(1, 4))] for _ in range(20_000)]
    predictions = [rng.choice([*answers, drawn_text(rng)]) for answers in golds]
    script = runpy.run_path(str(SCRIPTS / 'evaluate-v1.1.py'))
    for text, answers in zip(predictions, golds, strict=True):
        scores = [
            script['metric_max_over_ground_truths'](script[f'{n}_score'], text, answers) for n in ('exact_match', 'f1')
        ]
        assert exact_and_f1(text, answers) == tuple(scores), (text, answers)
    files = write(tmp_path, data=data_of(golds), predictions=by_id(predictions))
    assert official('evaluate-v1.1.py', *files) == percentages(squad_scores(predictions, golds))


@pytest.mark.real
@needs_scripts
@pytest.mark.parametrize('seed', range(3))
def test_version_2_equals_the_official_script(tmp_path, seed):
    rng = random.Random(seed)
    golds = [[drawn_text(rng) for _ in range(rng.randint(0, 3))] for _ in range(6_000)]
    predictions = [rng.choice([*answers, drawn_text(rng), '']) for answers in golds]
    odds = [rng.choice([rng.gauss(0, 3), float(rng.randint(-2, 2))]) for _ in golds]  # Some odds are equal.
    ids = {'predictions': by_id(predictions), 'odds': by_id(odds)}
    script = runpy.run_path(str(SCRIPTS / 'evaluate-v2.0.py'))
    exact, f1 = script['get_raw_scores'](data_of(golds)['data'], ids['predictions'])
    for number, (text, answers) in enumerate(zip(predictions, golds, strict=True)):
        assert exact_and_f1_with_no_answer(text, answers) == (exact[str(number)], f1[str(number)]), (text, answers)
    files = write(tmp_path, data=data_of(golds), **ids)
    assert official('evaluate-v2.0.py', *files[:2]) == percentages(squad2_scores(predictions, golds))
    for threshold in (1.0, -2.0):
        report = squad2_scores(predictions, golds, odds, threshold=threshold)
        assert official('evaluate-v2.0.py', *files[:2], '-n', files[2], '-t', threshold) == percentages(report)


@pytest.mark.real
@needs_scripts
def test_stored_reports_are_those_of_the_official_scripts(tmp_path):
    fixture = stored('squad_1')
    predictions, golds, *_ = zip(*fixture['cases'], strict=True)
    files = write(tmp_path, data=data_of(golds), predictions=by_id(predictions))
    assert official('evaluate-v1.1.py', *files) == fixture['report']
    fixture = stored('squad_2')
    for start, stop, threshold, report in fixture['reports']:
        predictions, golds, odds, *_ = zip(*fixture['cases'][start:stop], strict=True)
        files = write(tmp_path, data=data_of(golds), predictions=by_id(predictions), odds=by_id(odds))
        options = () if threshold is None else ('-n', files[2], '-t', threshold)
        assert official('evaluate-v2.0.py', *files[:2], *options) == report


@pytest.mark.real
@pytest.mark.skipif(not DATA.exists(), reason='needs data/squad')
def test_gold_answers_are_right():
    for name, score, best in (('dev-v1.1', squad_scores, 'exact_match'), ('dev-v2.0', squad2_scores, 'exact')):
        data = json.loads((DATA / f'{name}.rebuilt.json').read_text())['data']
        rows = [row for article in data for paragraph in article['paragraphs'] for row in paragraph['qas']]
        golds = [[answer['text'] for answer in row['answers']] for row in rows]
        scores = score([answers[0] if answers else '' for answers in golds], golds)
        assert (scores[best], scores['f1']) == (1.0, 1.0)
