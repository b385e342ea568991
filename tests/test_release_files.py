"""Tests that the release workflow, the Dockerfiles and the citation name files, commands and versions that exist."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import efficient_attention as ea
from tests.test_wheel import BUILD, PACKAGE, copy_sources, run_program

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILES = sorted((ROOT / 'docker').glob('*.Dockerfile'))
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']


# ---- the release workflow ----


def workflow() -> dict:
    """Returns the release workflow; YAML 1.1 reads its key `on` as True."""
    return yaml.safe_load((ROOT / '.github' / 'workflows' / 'release.yml').read_text(encoding='utf-8'))


def test_the_workflow_names_targets_and_files_of_the_tree():
    commands = '\n'.join(step['run'] for step in workflow()['jobs']['build']['steps'] if 'run' in step)
    targets = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(encoding='utf-8'), re.MULTILINE))
    used = set(re.findall(r'\bmake ([a-z-]+)', commands))
    files = re.findall(r'(?<![\w/])(?:docker|tests)/[\w./]+', commands)
    assert used == {'lint', 'install-test'} and used <= targets
    assert {ROOT / name for name in files} >= {*DOCKERFILES, Path(__file__), ROOT / 'tests' / 'test_wheel.py'}
    assert all((ROOT / name).is_file() for name in files)
    assert all('==' in word for word in re.findall(r'pip install (.*)', commands)[0].split())


def test_only_a_checked_build_of_a_tag_is_published():
    settings = workflow()
    build, publish = settings['jobs']['build'], settings['jobs']['publish']
    assert settings[True] == {'push': {'tags': ['v*']}} and settings['permissions'] == {'contents': 'read'}
    assert publish['needs'] == 'build' and publish['permissions'] == {'id-token': 'write'}
    assert 'permissions' not in build and publish['steps'][-1]['uses'].startswith('pypa/gh-action-pypi-publish@')
    (step,) = [step['run'] for step in build['steps'] if 'GITHUB_REF_NAME' in step.get('run', '')]
    for tag, code in ((f'v{ea.__version__}', 0), ('v9.9', 1)):
        path = f'{Path(sys.executable).parent}:/usr/bin:/bin'
        done = subprocess.run(['bash', '-c', step], cwd=ROOT, env={'GITHUB_REF_NAME': tag, 'PATH': path}, check=False)
        assert done.returncode == code


# ---- the Dockerfiles ----


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile, such as ('USER', '65534'), with continued lines joined."""
    text = dockerfile.read_text(encoding='utf-8').replace('\\\n', ' ')
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith('#')]
    return [(line.partition(' ')[0], line.partition(' ')[2]) for line in lines]


def copied(dockerfile: Path) -> list[str]:
    """Returns the files and folders of the checkout that a Dockerfile copies into the image."""
    return [name for word, rest in instructions(dockerfile) if word == 'COPY' for name in rest.split()[:-1]]


@pytest.mark.parametrize('dockerfile', DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_the_files_and_the_command(dockerfile: Path):
    allowed = [line[1:] for line in (ROOT / '.dockerignore').read_text(encoding='utf-8').split() if line[0] == '!']
    names = copied(dockerfile)
    assert names and all((ROOT / name).exists() for name in names)
    assert all(any(fnmatch(name, f'{one}*') for one in allowed) for name in names)
    found = dict(instructions(dockerfile))
    assert re.fullmatch(r'[1-9]\d*:[1-9]\d*', found['USER']), 'a container must not run as root'
    assert json.loads(found['ENTRYPOINT']) == ['efficient-attention']
    for word, command in instructions(dockerfile):
        if word == 'RUN' and 'requirement' in command:
            assert '--require-hashes' in command
            assert all((ROOT / one).exists() or one in command.split('>')[-1] for one in requirement_files(command))


def requirement_files(command: str) -> list[str]:
    words = shlex.split(command)
    return [words[place + 1] for place, word in enumerate(words) if word == '--requirement']


def test_the_copied_files_are_enough_for_the_wheel(tmp_path: Path):
    assert len({frozenset(name for name in copied(one) if 'requirements' not in name) for one in DOCKERFILES}) == 1
    copy_sources(tmp_path, *(name for name in copied(DOCKERFILES[0]) if 'requirements' not in name))
    run_program(tmp_path, sys.executable, '-c', BUILD, str(tmp_path))
    (wheel,) = tmp_path.glob('*.whl')
    found = set(zipfile.ZipFile(wheel).namelist())
    sources = [path.relative_to(ROOT) for name in (PACKAGE, 'configs') for path in (ROOT / name).rglob('*.py')]
    assert {str(path if path.parts[0] == PACKAGE else Path(PACKAGE) / path) for path in sources} <= found


def test_the_cuda_image_has_all_locked_packages_of_the_extra(tmp_path: Path):
    """Runs the command of the Dockerfile that selects these packages, without pip."""
    (command,) = [one for word, one in instructions(ROOT / 'docker' / 'cuda.Dockerfile') if 'awk' in one]
    copy_sources(tmp_path, 'requirements')
    subprocess.run(['bash', '-c', command.split('&&')[0]], cwd=tmp_path, check=True)
    lines = (tmp_path / 'requirements' / 'cuda.txt').read_text(encoding='utf-8').replace('\\\n', '').splitlines()
    assert all('==' in line and '--hash=sha256:' in line for line in lines)
    names = {re.split('[=;]', line)[0] for line in lines}
    assert {'jax-cuda13-plugin', 'jax-cuda13-pjrt', 'nvidia-cudnn-cu13', 'nvidia-nccl-cu13'} <= names
    locked = (ROOT / 'requirements' / 'plan.txt').read_text(encoding='utf-8')
    assert names == set(re.findall(r'^((?:nvidia|jax-cuda\w*)-[\w-]+)==', locked, re.MULTILINE))


# ---- the citation, and the address of the repository ----


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text(encoding='utf-8'))
    assert {'cff-version', 'message', 'title', 'authors'} <= set(citation)  # fields that the format requires
    assert (citation['version'], citation['license']) == (ea.__version__, PROJECT['license'])
    assert citation['title'] == PROJECT['name'] and {*citation['keywords']} <= {*PROJECT['keywords']}


def test_all_files_have_the_address_of_pyproject():
    """As long as pyproject.toml has no `[project.urls]`, the other files have none either."""
    address = PROJECT.get('urls', {}).get('Repository')
    assert yaml.safe_load((ROOT / 'CITATION.cff').read_text(encoding='utf-8')).get('repository-code') == address
    pages = [(ROOT / name).read_text(encoding='utf-8') for name in ('README.md', 'docs/scaling.md')]
    cloned = [found for page in pages for found in re.findall(r'git clone (<[^>]+>|\S+)', page)]
    assert cloned == 2 * [address or '<address of this repository>']
