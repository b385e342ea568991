"""Tests HTML pages that show the pooling weights of texts: their content, and that they load nothing from outside."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from efficient_attention.inference.pooling_weights import (
    BETWEEN,
    SPECIAL,
    UNREAD,
    PoolingWeightsOfText,
    WeightedSentence,
    WeightedWord,
)
from efficient_attention.programs.pictures import pooling as pooling_pages
from tests.inference.tiny_checkpoint import write_checkpoint

SCRIPT = Path(__file__).resolve().parents[3] / 'scripts' / 'visualize.py'
WORDS = (
    WeightedWord('a<b', 0.2),
    WeightedWord(' ', kind=BETWEEN),
    WeightedWord('c', 0.7),
    WeightedWord(' d e', kind=UNREAD),
    WeightedWord('', 0.1, SPECIAL),
)
TEXT = PoolingWeightsOfText(
    {'label': 'good', 'score': 0.75},
    (WeightedSentence(0.25, WORDS), WeightedSentence(0.75, (WeightedWord('x', 1.0), WeightedWord('', 0.0, SPECIAL)))),
    left_out=3,
)


def test_a_page_has_all_words_and_weights():
    page = pooling_pages.html_page([TEXT, TEXT])
    assert page.count('good (75.0%)') == 2 and page.count('3 more sentences are over the length limit') == 2
    assert 'title="20.00%">a&lt;b</span> <span' in page and '<span class="unread"> d e</span>' in page
    assert page.count('special 10.0%') == 2 and 'special 0.0%' not in page
    assert re.findall(r'width: ([\d.]+)%', page)[:2] == ['33.3', '100.0']
    shares = [float(share) for share in re.findall(r'calc\(([\d.]+) ', page)][:3]
    assert shares == [pytest.approx(0.25**0.5 * one / 0.75**0.5, abs=1e-3) for one in (0.2, 0.7)] + [1.0]
    assert 'prefers-color-scheme: dark' in page and 'http' not in page and '<script' not in page


def test_a_regression_has_a_number_and_no_weight_divides_by_nothing():
    assert pooling_pages.format_prediction(PoolingWeightsOfText({'score': 2.5}, (), 0)) == '2.500'
    assert 'width: 0.0%' in pooling_pages.html_article(
        PoolingWeightsOfText({'score': 2.5}, (WeightedSentence(0.0, WORDS[:1]),), 0)
    )


def test_the_command_writes_the_page(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path):
    model, out = write_checkpoint(tmp_path / 'made', 'classification'), tmp_path / 'page.html'
    words = ['pooling', '--model', str(model), 'the dog sleeps', 'a red house', '--output', str(out)]
    monkeypatch.setattr(sys, 'argv', ['visualize.py', *words])
    runpy.run_path(str(SCRIPT), run_name='__main__')
    assert capfd.readouterr().out.splitlines()[-1] == str(out)
    assert out.read_text(encoding='utf-8').count('<article>') == 2
