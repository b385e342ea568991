"""Tests the pages of the site that are made from the code; `make docs` builds the site itself."""

import re
import sys
from pathlib import Path

import pytest

import efficient_attention as ea
from tests.documents.pages import ROOT, TUTORIALS
from tests.test_configs import NAMES

sys.path.append(str(ROOT / 'docs'))

import site_pages  # noqa: E402  docs/ is no package


@pytest.fixture(scope='module')
def configs() -> list[site_pages.ConfigFile]:
    return site_pages.read_configs()


def test_the_api_page_has_every_public_name_once():
    page = site_pages.api_page()
    assert sorted(re.findall(r'^### (\w+)$', page, re.MULTILINE)) == ea.__all__
    assert "attend(query: Float[Array, 'B L H K'], key: Float[Array, 'B M G K']" in page
    assert re.search('^    B batch rows', page, re.MULTILINE)
    assert page.count(':special-members: __call__') == 3  # the models
    assert 'autoclass:: efficient_attention.Encoder(config: ModelConfig' in page
    assert 'autoclass:: efficient_attention.inference.load.LoadedTokenizer' in page


def test_every_config_has_its_record(configs: list[site_pages.ConfigFile]):
    page = site_pages.papers_page(configs)
    assert len(configs) == len(NAMES) and all(config.values for config in configs)
    assert '`efficient-attention train --config pretrain/albert.py:base --workdir runs/albert_base`' in page
    for config in configs:
        assert f'\n## {config.name}\n' in page and f'](#{site_pages.anchor(config.name)})' in page
    assert '| Zaheer et al. 2020, arXiv 2007.14062 | [pretrain/bigbird.py](#configs-pretrain-bigbird)<br>' in page


def test_a_field_has_its_type_default_meaning_and_other_values(configs: list[site_pages.ConfigFile]):
    page = site_pages.config_page(configs)
    (row,) = [line for line in page.splitlines() if line.startswith('| `optimizer.name`')]
    assert "`str`, `'adamw'`" in row and "`'lamb'`" in row and '[pretrain/albert.py]' in row
    assert '[pretrain/albert.py](papers.md#configs-pretrain-albert) Lan et al. 2019' in row
    assert page.count('\n| `') > 200


def test_many_configs_are_folded():
    papers = {f'configs/{name}.py': '-' for name in 'abcde'}
    line = site_pages.files('`1`', papers)
    assert line.startswith('<details><summary>`1`: 5 configs</summary>[a.py](papers.md#configs-a); [b.py]')
    assert site_pages.joined([line, 'x', 'y']) == f'{line}x<br>y'


def test_changed_sources_run_the_tutorials_again(tmp_path: Path):
    for name in ('efficient_attention/a.py', 'configs/b.py', 'requirements/docs.txt', 'docs/c.md'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('1', encoding='utf-8')
    hashes = [site_pages.hash_of_sources(tmp_path)]
    for name in ('efficient_attention/a.py', 'configs/b.py', 'requirements/docs.txt'):
        (tmp_path / name).write_text('2', encoding='utf-8')
        hashes.append(site_pages.hash_of_sources(tmp_path))
    assert len(set(hashes)) == 4
    (tmp_path / 'docs/c.md').write_text('2', encoding='utf-8')
    assert site_pages.hash_of_sources(tmp_path) == hashes[-1]


def test_links_to_results_lead_to_headings(configs: list[site_pages.ConfigFile]):
    links = {link for config in configs for link in site_pages.measurements(config)}
    found = [re.search(r'\]\(\.\./results/(\w+\.md)#(.*)\)', link) for link in links if 'results' in link]
    assert len(found) > 20
    for link in found:
        assert link
        text = (ROOT / 'docs' / 'results' / link[1]).read_text(encoding='utf-8')
        assert link[2] in {site_pages.slug(heading) for heading in re.findall('^## (.*)$', text, re.MULTILINE)}


def test_links_of_the_readme_fit_its_place_in_the_site():
    page = site_pages.project_page('README')
    links = [link.partition('#')[0] for link in re.findall(r'\]\(([^)#\s][^)\s]*)\)', page) if '://' not in link]
    assert len(links) > 20
    generated = {'results.md'}
    assert not [
        link for link in links if link not in generated and not (ROOT / 'docs/generated' / link).resolve().exists()
    ]


def test_text_of_a_comment_is_no_markup():
    assert site_pages.escaped('a | <glob> [1] *') == r'a \| \<glob\> \[1\] \*'


def test_every_tutorial_and_guide_is_on_the_first_page():
    listed = set(re.findall(r'^([\w/]+\.md)$', (ROOT / 'docs' / 'index.md').read_text(encoding='utf-8'), re.MULTILINE))
    pages = {path.relative_to(ROOT / 'docs').as_posix() for path in [*(ROOT / 'docs').glob('*.md'), *TUTORIALS]}
    assert pages - {'index.md'} == {name for name in listed if not name.startswith('generated/')}


def test_a_page_of_an_earlier_build_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site_pages, 'read_configs', list)
    folder = tmp_path / 'generated'
    folder.mkdir()
    (folder / 'old.md').write_text('old', encoding='utf-8')
    site_pages.write_pages(folder)
    names = {'api', 'config', 'papers', 'results', 'readme', 'contributing', 'changelog', 'security'}
    assert {path.stem for path in folder.iterdir()} == names
