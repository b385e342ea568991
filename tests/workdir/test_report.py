"""Tests that the report of a run is complete and self-contained, whatever files the workdir has."""

import base64
import hashlib
import html.parser
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from efficient_attention.errors import InputError, RunError, RunStopped
from efficient_attention.workdir.environment import write_environment
from efficient_attention.workdir.metrics import MetricsLog
from efficient_attention.workdir.report import metric_series, thin_curve, unigram_baselines, write_report
from efficient_attention.workdir.run_status import record_end, record_start
from efficient_attention.workdir.samples_log import append_samples


class Page(html.parser.HTMLParser):
    """Collects the tags of an HTML page, their attributes, the visible texts, and the texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.code: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ('', {})
        if self.cdata_elem == tag:
            self.code[attributes.get('id') or tag] = data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return ' '.join(' '.join(self.words).split())

    @property
    def charts(self) -> dict[str, dict]:
        return {chart['title']: chart for chart in json.loads(self.code['data'])['charts']}


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


def page_of(workdir) -> Page:
    return Page(write_report(workdir).read_text(encoding='utf-8'))


def test_the_page_holds_metrics_baseline_config_and_environment(workdir):
    assert write_report(workdir) == workdir / 'report.html'
    page = page_of(workdir)
    for part in (
        'held-out, step 30',
        '3',
        '4',
        'unigram',
        '25.0% lower',
        'a <b> & c',
        '["bias"]',
        'jaxlib',
        'my <run>',
    ):
        assert part in page.text, part
    assert 'state not recorded at step 30 of 40' in page.text
    assert 'train.steps 40 1000' in page.text, 'fields that differ from their defaults, with both values'
    assert 'note a <b> & c' in page.text, 'other fields'
    loss = page.charts['masked_loss']
    assert loss['lines'][0] == {'label': 'train', 'steps': [10, 20, 30], 'values': [0.9, 0.45, 0.3]}
    assert loss['baseline'] == 4.0
    assert set(page.charts) == {'masked_loss', 'learning_rate', 'tokens_per_second'}, 'no chart of a constant metric'


def test_every_metric_of_the_page_is_defined(workdir):
    terms = page_of(workdir).text.partition('What the terms mean')[2]
    for part in (
        'masked_loss nats',
        'tokens_per_second tokens/s',
        'learning_rate',
        'held-out',
        'step',
        'unigram_masked_loss',
    ):
        assert part in terms, part


def test_the_page_may_load_nothing_and_run_only_its_own_script(workdir):
    page = page_of(workdir)
    assert not re.findall(r'https?://(?!www\.w3\.org/2000/svg)', (workdir / 'report.html').read_text())
    assert not {'link', 'img', 'iframe'} & {tag for tag, _ in page.tags}
    assert not [
        value
        for _, of in page.tags
        for name, value in of.items()
        if name in ('src', 'href', 'style') or name.startswith('on')
    ]
    (policy,) = (of['content'] for tag, of in page.tags if of.get('http-equiv') == 'Content-Security-Policy')
    rules = dict(rule.strip().split(' ', 1) for rule in policy.split(';'))
    assert rules['default-src'] == "'none'" and rules['base-uri'] == "'none'"
    for tag in ('script', 'style'):
        digest = base64.b64encode(hashlib.sha256(page.code[tag].encode()).digest()).decode()
        assert rules[f'{tag}-src'] == f"'sha256-{digest}'"


def test_texts_of_files_stay_texts(tmp_path):
    evil = '</script><script>alert(1)</script>'
    with MetricsLog(tmp_path) as log:
        for step in (1, 2):
            log.write_metrics(step, evil, {evil: step})
    append_samples(tmp_path, 2, evil, [{'input': evil, 'output': evil}])
    (tmp_path / 'config.json').write_text(json.dumps({evil: evil, 'train': {evil: evil}}))
    (tmp_path / 'environment.json').write_text(json.dumps({evil: evil}))
    page = page_of(tmp_path)
    assert evil in page.charts
    assert [tag for tag, _ in page.tags].count('script') == 2
    assert evil not in (tmp_path / 'report.html').read_text()


def test_long_curves_become_means_with_the_extremes_of_each_group():
    steps = list(range(10_000))
    values = [0.0] * 10_000
    values[5] = 30.0
    values[25] = math.nan
    curve = thin_curve(steps, values)
    assert {name: len(found) for name, found in curve.items()} == dict.fromkeys(
        ('steps', 'values', 'low', 'high'), 1000
    )
    assert (curve['values'][0], curve['low'][0], curve['high'][0]) == (3, 0, 30)
    assert curve['values'][2] == 0 and curve['steps'][-1] == 9999
    assert thin_curve([1, 2], [1.23456789, math.inf]) == {'steps': [1, 2], 'values': [1.23457, None]}


@pytest.mark.parametrize(
    'state, error, said',
    [
        ('running', None, 'running at step 30 of 40'),
        ('complete', None, 'complete 30 of 40 steps, ended by early stopping'),
        ('stopped', RunStopped(), 'stopped at step 30 of 40'),
        ('failed', RunError('the disk is full'), 'failed at step 30 of 40 RunError: the disk is full'),
    ],
)
def test_the_page_tells_state_command_and_duration(workdir, monkeypatch, state, error, said):
    monkeypatch.setattr('sys.orig_argv', ['python', 'train.py', '--workdir', 'my <run>'])
    record_start(workdir)
    if state != 'running':
        record_end(workdir, error)
    text = page_of(workdir).text
    for part in (said, "python train.py --workdir 'my <run>'", '0:00:00 (hours:minutes:seconds)', ' UTC'):
        assert part in text, part


def test_the_page_shows_the_newest_samples_first(workdir):
    for step in range(1, 51):
        append_samples(workdir, step, 'translations', [{'input': 'ein', 'output': f'one {step}', 'target': 'a'}])
    text = page_of(workdir).text
    assert 'Step 50: translations input ein output one 50 target a Step 47: translations' in text
    assert text.count('translations') <= 20


@pytest.mark.skipif(not shutil.which('node'), reason='no node')
def test_the_script_draws_every_chart_of_a_page(workdir, tmp_path):
    """Runs the page's script with a stand-in for the browser, which counts what it makes."""
    page = page_of(workdir)
    drawn, used = draw(page, tmp_path), draw(page, tmp_path, 'used')
    assert drawn['svg'] == drawn['figure'] == 3
    assert drawn['path'] == 4 and drawn['button'] == 2
    # The log scale draws its two charts again, and the pointer marks a point of each curve.
    assert used['path'] == 4 + 3 and used['circle'] == drawn['circle'] + 7 + 4


def draw(page: Page, folder: Path, *words: str) -> dict[str, int]:
    """Runs a page's script; returns how many elements of each tag it makes."""
    (folder / 'run.js').write_text(BROWSER + page.code['script'] + '\nconsole.log(JSON.stringify(made));')
    command = ['node', str(folder / 'run.js'), page.code['data'], *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# A document whose elements only remember their attributes.
BROWSER = """
const made = {};
class Node {
  constructor(tag) { made[tag] = (made[tag] ?? 0) + 1; this.style = {}; }
  setAttribute(name, value) { if (/NaN|undefined/.test(value)) throw Error(`${name}=${value}`); }
  append() {}
  addEventListener(name, listen) { if (process.argv[3] === 'used') listen({clientX: 300, clientY: 9}); }
  getBoundingClientRect() { return {left: 0, top: 0, width: 540}; }
  remove() {}
  replaceChildren() {}
}
globalThis.document = {
  createElement: tag => new Node(tag),
  createElementNS: (_, tag) => new Node(tag),
  getElementById: id => id === 'data' ? {textContent: process.argv[2]} : new Node('place'),
};
"""


def test_metrics_alone_are_enough(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write_metrics(1, 'train', {'loss': 1.0})
    assert 'Config' not in page_of(tmp_path).text


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
