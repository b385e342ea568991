"""Tests that the report of a run is complete and self-contained, whatever files the workdir has."""

import html.parser
import json
import re

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.environment import write_environment
from efficient_attention.workdir.metrics import MetricsLog
from efficient_attention.workdir.report import main, metric_series, unigram_baselines, write_report


class Page(html.parser.HTMLParser):
    """Collects the tags and the texts of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def workdir(tmp_path):
    workdir = tmp_path / 'my <run>'
    with MetricsLog(workdir) as log:
        for step in (10, 20, 30):
            log.write_metrics(
                step, 'train', {'masked_loss': 9.0 / step, 'learning_rate': 1e-3, 'tokens_per_second': 1000 * step}
            )
        log.write_metrics(30, 'held_out', {'masked_loss': 3.0, 'unigram_masked_loss': 4.0, 'skew': float('nan')})
    config = {'note': 'a <b> & c', 'train': {'steps': 40}, 'optimizer': {'no_decay': ['bias']}}
    (workdir / 'config.json').write_text(json.dumps(config))
    write_environment(workdir)
    return workdir


def test_the_page_holds_metrics_baseline_config_and_environment(workdir):
    path = write_report(workdir)
    assert path == workdir / 'report.html'
    page = Page(path.read_text())
    text = ' '.join(page.words)
    for part in (
        'held-out, step 30',
        '3',
        '4',
        'unigram',
        '25.0% lower',
        'of 40 steps',
        'a <b> & c',
        '["bias"]',
        'jaxlib',
    ):
        assert part in text, part
    assert page.tags.count('svg') == 3  # charts of loss, learning rate (although constant) and tokens per second
    assert 'my <run>' in text


def test_the_page_needs_nothing_from_outside(workdir):
    text = write_report(workdir).read_text()
    addresses = set(re.findall(r'https?://[^"\' <]+', text))
    # these addresses are names of XML namespaces, not links
    assert addresses <= {'http://www.w3.org/2000/svg', 'http://www.w3.org/1999/xlink'}
    assert not {'script', 'link', 'img', 'iframe'} & set(Page(text).tags)


def test_metrics_alone_are_enough(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write_metrics(1, 'train', {'loss': 1.0})
    assert 'Config' not in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    'data, evaluation, is_said',
    [
        ({'held_out': 0.1}, {'split': 'held_out'}, False),
        ({'held_out': 0.0}, {'split': 'held_out'}, True),
        ({'held_out': 0.0, 'test': 0.1}, {'split': 'test'}, False),
    ],
)
def test_a_run_that_is_not_evaluated_says_so(workdir, data: dict, evaluation: dict, is_said: bool):
    (workdir / 'config.json').write_text(json.dumps({'data': data, 'eval': evaluation}))
    assert ('the run was not evaluated' in write_report(workdir).read_text()) is is_said


def test_series_and_baselines():
    lines = [
        {'step': 1, 'split': 'train', 'speed': 5, 'total_loss': 2.0},
        {'step': 2, 'split': 'held_out', 'loss': 1.0, 'unigram_loss': 3.0, 'text': 'no number'},
    ]
    assert list(metric_series(lines)) == ['loss', 'total_loss', 'unigram_loss', 'speed']
    assert metric_series(lines)['loss'] == {'held_out': ([2], [1.0])}
    assert unigram_baselines(lines) == {'loss': 3.0}


def test_an_empty_workdir_and_a_damaged_config_are_named(tmp_path, workdir):
    with pytest.raises(InputError, match='nothing to report'):
        write_report(tmp_path)
    (workdir / 'config.json').write_text('{')
    with pytest.raises(InputError, match=r'config\.json is not JSON: '):
        write_report(workdir)


def test_the_command_prints_the_path(workdir, capsys, monkeypatch):
    monkeypatch.setattr('sys.argv', ['report.py', str(workdir)])
    main()
    assert capsys.readouterr().out == f'{workdir / "report.html"}\n'
