import ast
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.hotpotqa import (
    answer_scores,
    harmonic_mean,
    hotpot_scores,
    joint_scores,
    support_scores,
)

FIXTURE = Path(__file__).parent / 'fixtures' / 'hotpot.json'
SCRIPT = Path(__file__).parents[3] / 'cache' / 'official_scripts' / 'hotpot_evaluate_v1.py'


def test_answers():
    assert answer_scores('The Cat', ['cat']) == (1, 1, 1, 1)
    assert answer_scores('hat dog', ['dog']) == pytest.approx((0, 2 / 3, 1 / 2, 1))
    assert answer_scores('yes', ['Yes!']) == (1, 1, 1, 1)
    assert answer_scores('yes it is', ['yes']) == answer_scores('no', ['no one']) == (0, 0, 0, 0)
    assert answer_scores('the', ['a']) == (1, 0, 0, 0)


def test_of_several_names_the_closest_counts():
    assert answer_scores('the US', ['America', 'United States', 'US']) == (1, 1, 1, 1)


def test_sentences():
    gold = {('Sea', 1), ('Hill', 0)}
    assert support_scores(gold, gold) == (1, 1, 1, 1)
    assert support_scores([('Sea', 1), ('Sea', 2), ('Sea', 2)], gold) == (0, 1 / 2, 1 / 2, 1 / 2)
    assert support_scores([], gold) == (0, 0, 0, 0)
    assert support_scores([], []) == (1, 0, 0, 0)
    assert harmonic_mean(1, 1 / 3) == pytest.approx(1 / 2)


def test_both_together():
    answer, support = (0, 2 / 3, 1 / 2, 1), (1, 1, 1, 1)
    assert joint_scores(answer, support) == pytest.approx((0, 2 / 3, 1 / 2, 1))
    scores = hotpot_scores([answer, (1, 1, 1, 1)], [support, (0, 0, 0, 0)])
    assert (scores['em'], scores['sp_em'], scores['joint_em']) == (1 / 2, 1 / 2, 0)
    assert (scores['f1'], scores['joint_f1']) == pytest.approx((5 / 6, 1 / 3))
    with pytest.raises(InputError, match='no question'):
        hotpot_scores([], [])


def stored():
    return json.loads(FIXTURE.read_text(encoding='utf-8'))


def facts_of(pairs):
    return [tuple(pair) for pair in pairs]


def test_equal_to_the_stored_scores():
    """Scores equal the official script's stored scores of 300 random predictions, each and together (hotpot.json).

    Script: hotpot_evaluate_v1.py of GitHub's hotpotqa/hotpot, commit 4c0fa5ea6541391ab86170c2f9c57eb87776ad16.
    """
    fixture = stored()
    answers = [answer_scores(text, [right]) for text, right, *_ in fixture['cases']]
    support = [support_scores(facts_of(chosen), facts_of(right)) for _, _, chosen, right, _ in fixture['cases']]
    for answer, sentences, case in zip(answers, support, fixture['cases'], strict=True):
        scores = *answer, *sentences, *joint_scores(answer, sentences)
        assert scores == pytest.approx(tuple(case[-1]), abs=1e-9), case
    assert hotpot_scores(answers, support) == pytest.approx(fixture['report'], abs=1e-9)


def official(folder, guesses, gold):
    """Returns the official script's report on answers and supporting sentences, one pair a question."""
    rows = [{'_id': str(n), 'answer': text, 'supporting_facts': facts} for n, (text, facts) in enumerate(gold)]
    predictions = {'answer': {str(n): text for n, (text, _) in enumerate(guesses)}}
    predictions['sp'] = {str(n): facts for n, (_, facts) in enumerate(guesses)}
    for name, content in (('guesses', predictions), ('gold', rows)):
        (folder / name).write_text(json.dumps(content))
    program = 'import json, runpy, sys; sys.modules["ujson"] = json; runpy.run_path(sys.argv[0], run_name="__main__")'
    # The script's only package outside the standard library reads JSON.
    program = f'import sys; sys.argv = sys.argv[1:]; {program}'
    command = [sys.executable, '-c', program, str(SCRIPT), str(folder / 'guesses'), str(folder / 'gold')]
    return ast.literal_eval(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


needs_script = pytest.mark.skipif(not SCRIPT.exists(), reason='needs cache/official_scripts')


@pytest.mark.real
@needs_script
def test_equal_to_the_official_script(tmp_path):
    rng = random.Random(0)
    words = ['yes', 'no', 'the', 'cat', 'dog', 'red', 'noanswer', 'é', "'s", '–']
    texts = [' '.join(rng.choices(words, k=rng.randint(0, 3))) for _ in range(3000)]
    facts = [('T', number) for number in range(4)]
    gold, guesses = [[(rng.choice(texts), rng.sample(facts, rng.randint(0, 3))) for _ in range(2000)] for _ in range(2)]
    answers = [answer_scores(text, [right]) for (text, _), (right, _) in zip(guesses, gold, strict=True)]
    support = [support_scores(chosen, right) for (_, chosen), (_, right) in zip(guesses, gold, strict=True)]
    assert hotpot_scores(answers, support) == pytest.approx(official(tmp_path, guesses, gold), abs=1e-12)


@pytest.mark.real
@needs_script
def test_the_stored_report_is_that_of_the_official_script(tmp_path):
    fixture = stored()
    guesses = [(text, facts) for text, _, facts, _, _ in fixture['cases']]
    gold = [(text, facts) for _, text, _, facts, _ in fixture['cases']]
    assert official(tmp_path, guesses, gold) == fixture['report']
