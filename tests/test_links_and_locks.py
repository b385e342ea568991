"""Tests that links, commands and files in the documents exist, and that the required packages are locked."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob('*.md'), *(path for path in (ROOT / 'docs').rglob('*.md') if path.parent.name != 'generated')]
)


def commands_of(document: Path) -> str:
    """Returns a document's bash blocks, and the paths and make targets in its inline code."""
    text = document.read_text(encoding='utf-8')
    blocks = re.findall(r'^```bash\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    return '\n'.join([*blocks, *re.findall(r'`([^`\n]*/[^`\n]*|make [a-z]+)`', text)])


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document):
    links = re.findall(r'\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"', document.read_text(encoding='utf-8'))
    targets = [''.join(pair).split('#')[0] for pair in links]
    targets = [name for name in targets if not name.startswith('../generated/')]  # `make docs` writes these pages
    assert not [name for name in targets if name and '://' not in name and not (document.parent / name).exists()]


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.name)
def test_commands_name_files_that_exist(document):
    code = commands_of(document)
    files = re.findall(r'(?<![\w/<>*=.$-])((?:[\w-]+/)*[\w-]+\.(?:py|toml|txt))(?![\w/*])', code)
    there = {name for name in files if (ROOT / name).exists() or (ROOT / 'configs' / name).exists()}  # a config's name
    assert not [name for name in files if name not in there and not name.startswith(('runs/', 'data/', 'my_'))]
    targets = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(encoding='utf-8'), re.MULTILINE))
    assert set(re.findall(r'\bmake ([a-z-]+)\b', code)) <= targets


@pytest.mark.parametrize('path', sorted((ROOT / 'requirements').glob('*.txt')), ids=lambda path: path.name)
def test_requirements_name_no_address(path):
    text = path.read_text(encoding='utf-8')
    assert '://' not in text
    assert not re.search(r'^\s*(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)\b', text, re.MULTILINE)


@pytest.mark.parametrize('name', ['run', 'test', 'lint', 'plan', 'beam', 'tfds', 'docs'])
def test_every_locked_package_has_a_hash(name):
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text(encoding='utf-8').replace('\\\n', '').splitlines()
    assert lines and not [line.split()[0] for line in lines if '==' not in line or '--hash=sha256:' not in line]


def test_every_lock_is_installed_as_a_constraint_too():
    # otherwise pip takes the newest uvicorn where a package asks for uvicorn[standard], and finds no hash for it
    texts = [path.read_text(encoding='utf-8') for path in (ROOT / 'Makefile', *(ROOT / 'docker').glob('*.Dockerfile'))]
    installs = [line for text in texts for line in text.replace('\\\n', '').splitlines() if '--require-hashes' in line]
    assert len(installs) == 4
    for line in installs:
        (lock,) = re.findall(r'--requirement (\S+)', line)
        assert f'--constraint {lock}' in line or '--no-deps' in line


def test_locks_hold_what_the_project_asks_for():
    settings = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    project = settings['project']
    extras = project['optional-dependencies']
    run = [*project['dependencies'], *extras['train']]
    asked = {'run': run, 'test': [*run, *extras['test'], *extras['tfds']]}
    asked['plan'] = [*asked['test'], 'jax-cuda13-plugin', 'libtpu']
    asked['docs'] = [*run, *extras['docs']]
    asked['harness'] = [*asked['test'], *extras['harness']]
    asked |= {name: settings['dependency-groups'][name] for name in ('lint', 'beam')}
    lines = (ROOT / 'requirements' / 'tfds.in').read_text(encoding='utf-8').splitlines()
    asked['tfds'] = [line for line in lines if not line.startswith('#')]
    for name, requirements in asked.items():
        locked = set(re.findall(r'^([\w.-]+)==', (ROOT / 'requirements' / f'{name}.txt').read_text(), re.MULTILINE))
        wanted = {re.split(r'[\[<>=~! ]', line)[0].lower() for line in requirements} - {project['name']}
        assert {one.replace('_', '-') for one in wanted} <= {one.lower().replace('_', '-') for one in locked}


@pytest.mark.parametrize('name', ['README.md', 'CONTRIBUTING.md'])
def test_pages_name_every_extra(name: str):
    settings = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    text = (ROOT / name).read_text(encoding='utf-8')
    extras = set(settings['project']['optional-dependencies']) - {'test', 'train'}
    assert not [extra for extra in extras if f'`{extra}`' not in text] and 'train' in text
