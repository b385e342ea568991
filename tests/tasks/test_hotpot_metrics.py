import ast
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.hotpot_metrics import (
    answer_scores,
    harmonic_mean,
    hotpot_scores,
    joint_scores,
    support_scores,
)

SCRIPT = Path(__file__).parents[2] / 'cache' / 'official_scripts' / 'hotpot_evaluate_v1.py'


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


@pytest.mark.real
@pytest.mark.skipif(not SCRIPT.exists(), reason='needs cache/official_scripts')
def test_equal_to_the_official_script(tmp_path):
    rng = random.Random(0)
    words = ['yes', 'no', 'the', 'cat', 'dog', 'red', 'noanswer', 'é', "'s", '–']
    texts = [' '.join(rng.choices(words, k=rng.randint(0, 3))) for _ in range(3000)]
    facts = [('T', number) for number in range(4)]
    gold, own = [[(rng.choice(texts), rng.sample(facts, rng.randint(0, 3))) for _ in range(2000)] for _ in range(2)]
    rows = [{'_id': str(n), 'answer': text, 'supporting_facts': own} for n, (text, own) in enumerate(gold)]
    predictions = {'answer': {str(n): text for n, (text, _) in enumerate(own)}, 'sp': {}}
    predictions['sp'] = {str(n): own for n, (_, own) in enumerate(own)}
    for name, content in (('own', predictions), ('gold', rows)):
        (tmp_path / name).write_text(json.dumps(content))
    program = 'import json, runpy, sys; sys.modules["ujson"] = json; runpy.run_path(sys.argv[0], run_name="__main__")'
    program = f'import sys; sys.argv = sys.argv[1:]; {program}'  # the script's only foreign import reads JSON
    command = [sys.executable, '-c', program, str(SCRIPT), str(tmp_path / 'own'), str(tmp_path / 'gold')]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answers = [answer_scores(text, [right]) for (text, _), (right, _) in zip(own, gold, strict=True)]
    support = [support_scores(chosen, right) for (_, chosen), (_, right) in zip(own, gold, strict=True)]
    assert hotpot_scores(answers, support) == pytest.approx(ast.literal_eval(printed), abs=1e-12)
