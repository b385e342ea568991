"""Tests that BLEU and chrF equal the output of sacreBLEU's command on the same files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.translation import translation_scores

REFERENCES = [
    'Two young men are outside, near many bushes.',
    'A man in an orange hat.',
    'Über 3,5 km.',
]
HYPOTHESES = [
    'Two young men are outside near some bushes.',
    'A man in an orange cap.',
    'Über 3,5 km.',
]


def test_scores_are_those_of_the_command(tmp_path: Path):
    for name, lines in (('hypotheses', HYPOTHESES), ('references', REFERENCES)):
        (tmp_path / name).write_text('\n'.join(lines) + '\n', encoding='utf-8')
    command = [sys.executable, '-m', 'sacrebleu', 'references', '-i', 'hypotheses', '-m', 'bleu', 'chrf', '-w', '9']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    bleu, chrf = json.loads(done.stdout)
    scores = translation_scores(HYPOTHESES, REFERENCES)
    assert scores['bleu'] == pytest.approx(bleu['score'], abs=1e-8)
    assert scores['chrf'] == pytest.approx(chrf['score'], abs=1e-8)
    assert scores['bleu_signature'] == bleu['signature'] == 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0'
    assert scores['chrf_signature'] == chrf['signature']
    assert scores['exact_match'] == pytest.approx(1 / 3)


def test_perfect_texts_score_fully():
    scores = translation_scores(REFERENCES, REFERENCES)
    assert (scores['bleu'], scores['chrf'], scores['exact_match']) == (pytest.approx(100.0), pytest.approx(100.0), 1.0)


@pytest.mark.parametrize('references', [[], REFERENCES[:2]])
def test_missing_references_are_said(references: list[str]):
    with pytest.raises(InputError, match=rf'^there are {len(references)} references for 3 texts to score$'):
        translation_scores(HYPOTHESES, references)
