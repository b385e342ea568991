"""Tests the files of the wheel, and the package outside its checkout with only its core dependencies."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.quick_compile import FLAGS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = 'efficient_attention'
BUILD = 'import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])'


def copy_sources(folder: Path, *names: str) -> None:
    for name in names:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy(path, folder / name)


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


def run_python(folder: Path, *arguments: str, **environment: str) -> str:
    """Returns what a Python process, started in an empty environment except for `environment`, prints."""
    command = [sys.executable, *arguments]
    settings = {name: os.environ[name] for name in ('PATH', 'HOME', 'TMPDIR') if name in os.environ} | environment
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the wheel ----


def setuptools_version() -> Version:
    try:
        return Version(importlib.metadata.version('setuptools'))
    except importlib.metadata.PackageNotFoundError:
        return Version('0')


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Builds the wheel from a copy of the checkout, so that the build leaves no files in the checkout."""
    if setuptools_version() < Version('77'):
        pytest.skip('building the wheel needs setuptools 77 or newer, as pyproject.toml says')
    folder, built = tmp_path_factory.mktemp('checkout'), tmp_path_factory.mktemp('wheel')
    copy_sources(folder, PACKAGE, 'configs', 'scripts', 'tests', 'train.py', 'pyproject.toml', 'README.md', 'LICENSE')
    run_python(folder, '-c', BUILD, str(built))
    (path,) = built.glob('*.whl')
    return zipfile.ZipFile(path)


def test_the_wheel_has_the_files_of_the_package_and_no_others(wheel: zipfile.ZipFile):
    files = {name for name in wheel.namelist() if '.dist-info/' not in name}
    expected = {f'{PACKAGE}/{name}' for name in files_below(ROOT / PACKAGE) if '__pycache__' not in name}
    assert (
        files == expected
        and {f'{PACKAGE}/py.typed', f'{PACKAGE}/__init__.pyi', f'{PACKAGE}/inference/pipeline.py'} <= files
    )


def test_the_wheel_asks_for_few_packages(wheel: zipfile.ZipFile):
    (name,) = [name for name in wheel.namelist() if name.endswith('.dist-info/METADATA')]
    metadata: Message = HeaderParser().parsestr(wheel.read(name).decode())
    asked = [Requirement(line) for line in metadata.get_all('Requires-Dist', [])]
    assert {one.name for one in asked if one.marker is None} == {'jax', 'flax', 'jaxtyping', 'numpy'}
    assert {'train', 'tfds', 'cuda', 'tpu'} <= {*metadata.get_all('Provides-Extra', [])}
    assert any('pillow' == one.name and one.marker.evaluate({'extra': 'train'}) for one in asked if one.marker)


# ---- the package with only its core dependencies ----

CORE = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']['dependencies']
# Python's finders, except that packages beyond the core look as if they were not installed.
HIDE = """
import importlib.machinery
import sys

HIDDEN = frozenset(sys.argv[1].split(','))


class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition('.')[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path[:] = [Finder if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
"""

ATTENTION = """
import jax
import jax.numpy as jnp
import efficient_attention as ea
from efficient_attention.attention.registry import NAMES, load_implementation

q = k = v = jax.random.normal(jax.random.key(0), (2, 32, 4, 8))
mechanism = ea.Softmax(ea.Causal() & ea.Window(4))
out = ea.attend(q, k, v, mechanism)
attend = lambda q: ea.attend(q, k, v, mechanism)
assert jnp.allclose(jax.jit(attend)(q), out, atol=1e-5)
rows = jax.vmap(lambda q, k, v: ea.attend(q[None], k[None], v[None], mechanism)[0])(q, k, v)
assert jnp.allclose(rows, out, atol=1e-5)
gradient = jax.grad(lambda v: ea.attend(q, k, v, mechanism)[:, :8].sum())(v)
assert jnp.abs(gradient[:, :8]).min() > 0 and not gradient[:, 8:].any()
for name in NAMES:
    load_implementation(name)
for text in ['bigbird(4, 1)', 'lsh(4, 2)', 'favor(16)', 'linear(causal=True)', 'sparsemax(full)', 'nystrom(4)']:
    other, rng = ea.parse_mechanism(text), jax.random.key(1)
    assert jax.eval_shape(lambda q, v: ea.attend(q, q, v, other, rng=rng), q, v).shape == out.shape, text
"""

NAMES = """
import inspect
import jax.numpy as jnp
import efficient_attention as ea
from flax import nnx

ids = jnp.ones((2, 6), jnp.int32)
model = nnx.eval_shape(lambda: ea.Encoder(ea.ModelConfig(width=16, heads=2), rngs=nnx.Rngs(0))(ids, ids))
assert model.shape == (2, 6, 16)
assert set(ea.__all__) - set(dict(inspect.getmembers(ea))) == {'evaluate', 'load', 'pipeline', 'train'}
try:
    from efficient_attention import pipeline
except ImportError as error:
    print(error)
print(ea.__file__)
"""


def packages_of(requirements: list[str]) -> set[str]:
    """Returns the canonical names of the distributions that pip installs for these requirements."""
    found: set[tuple[str, str]] = set()
    left = [Requirement(line) for line in requirements]
    while left:
        one = left.pop()
        for extra in {'', *one.extras}:
            if (key := (canonicalize_name(one.name), extra)) not in found:
                found.add(key)
                asked = map(Requirement, importlib.metadata.requires(one.name) or [])
                left += [more for more in asked if more.marker is None or more.marker.evaluate({'extra': extra})]
    return {name for name, _ in found}


def import_names_beyond_core() -> set[str]:
    """Returns the import names of all installed packages that the core dependencies do not bring."""
    core = packages_of(CORE)
    owners = importlib.metadata.packages_distributions()
    return {name for name, of in owners.items() if not {canonicalize_name(one) for one in of} & core} - {PACKAGE}


@pytest.fixture(scope='module')
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the package, as the wheel has it, and nothing else of the checkout."""
    folder = tmp_path_factory.mktemp('site')
    copy_sources(folder, PACKAGE)
    return folder


def run_with_core(installed: Path, program: str) -> str:
    """Returns the output of a program that finds only the package, the core dependencies and their dependencies."""
    hidden = ','.join(sorted(import_names_beyond_core()))
    environment = {'PYTHONPATH': str(installed), 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': FLAGS}
    return run_python(installed, '-c', HIDE + program, hidden, **environment)


def test_packages_beyond_the_core_are_hidden():
    hidden = import_names_beyond_core()
    assert {'PIL', 'tokenizers', 'grain', 'array_record', 'ml_collections', 'tensorflow_datasets', 'pytest'} <= hidden
    assert not hidden & {'jax', 'jaxlib', 'flax', 'numpy', 'jaxtyping', 'scipy', 'optax', 'orbax'}


def test_attention_with_only_the_core(installed: Path):
    run_with_core(installed, ATTENTION)


def test_a_users_model_trains_with_only_the_core(installed: Path):
    run_with_core(installed, (ROOT / 'tests' / 'users' / 'nnx_model.py').read_text(encoding='utf-8'))


def test_public_names_with_only_the_core(installed: Path):
    line, file = run_with_core(installed, NAMES).splitlines()
    assert line.startswith(
        "efficient_attention.pipeline needs: pip install 'efficient-attention[train]' (No module named "
    )
    assert Path(file) == installed / PACKAGE / '__init__.py'
