"""Tests the files of the wheel, and the installed wheel: with only its core dependencies, then with those of `train`.

WHEEL_FOLDER names a folder with a wheel that is already built, as the release workflow has one.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.inference.tiny_checkpoint import random_text, write_checkpoint
from tests.quick_compile import FLAGS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = 'efficient_attention'
# environment variables that a program gets; the last two let it load programs that another process has compiled
KEPT = ('PATH', 'HOME', 'TMPDIR', 'JAX_COMPILATION_CACHE_DIR', 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS')
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


def run_program(folder: Path, *command: str | Path, **environment: str) -> str:
    """Returns what a program prints, started in a folder with only the environment variables that it needs."""
    settings = {name: os.environ[name] for name in KEPT if name in os.environ}
    settings |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': FLAGS, **environment}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- the wheel ----


def setuptools_version() -> Version:
    try:
        return Version(importlib.metadata.version('setuptools'))
    except importlib.metadata.PackageNotFoundError:
        return Version('0')


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel, built from a copy of the checkout, so that the build leaves no files in the checkout."""
    if 'WHEEL_FOLDER' in os.environ:
        (path,) = (ROOT / os.environ['WHEEL_FOLDER']).glob('*.whl')
        return path
    if setuptools_version() < Version('77'):
        pytest.skip('building the wheel needs setuptools 77 or newer, as pyproject.toml says')
    folder, built = tmp_path_factory.mktemp('checkout'), tmp_path_factory.mktemp('wheel')
    copy_sources(folder, PACKAGE, 'configs', 'scripts', 'tests', 'train.py', 'README.md', 'LICENSE')
    copy_sources(folder, 'pyproject.toml', 'setup.py')
    run_program(folder, sys.executable, '-c', BUILD, str(built))
    (path,) = built.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def files(wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel)


def test_the_wheel_has_the_files_of_the_package_and_the_configs_and_no_others(files: zipfile.ZipFile):
    found = {name for name in files.namelist() if '.dist-info/' not in name}
    sources = {PACKAGE: PACKAGE, 'configs': f'{PACKAGE}/configs'}  # {folder of the checkout: folder of the wheel}
    expected = {f'{there}/{name}' for here, there in sources.items() for name in files_below(ROOT / here)}
    expected = {name for name in expected if '__pycache__' not in name}
    assert found == expected and {f'{PACKAGE}/py.typed', f'{PACKAGE}/__init__.pyi'} <= found


def test_the_wheel_has_the_command(files: zipfile.ZipFile):
    (name,) = [name for name in files.namelist() if name.endswith('.dist-info/entry_points.txt')]
    command = 'efficient-attention = efficient_attention.programs.dispatch:main'
    assert files.read(name).decode().split('\n')[:2] == ['[console_scripts]', command]


SHOW = """
import sys

from efficient_attention.programs import dispatch

sys.argv[1:] = ['configs', 'show', 'configs/finetune/glue.py:sst2']
dispatch.main()
print(sys.modules['configs.finetune.common'].__file__)
"""


def test_a_config_of_the_wheel_is_read_by_name(files: zipfile.ZipFile, tmp_path: Path):
    """The path of this Python may also have a checkout, whose configs/ must not be read."""
    files.extractall(tmp_path / 'site')
    (tmp_path / 'empty').mkdir()
    out = run_program(tmp_path / 'empty', sys.executable, '-c', SHOW, PYTHONPATH=str(tmp_path / 'site'))
    assert "  --config.examples.name='sst2' " in out
    assert out.splitlines()[-1] == str(tmp_path / 'site' / PACKAGE / 'configs' / 'finetune' / 'common.py')


def test_the_wheel_asks_for_few_packages(files: zipfile.ZipFile):
    (name,) = [name for name in files.namelist() if name.endswith('.dist-info/METADATA')]
    metadata: Message = HeaderParser().parsestr(files.read(name).decode())
    asked = [Requirement(line) for line in metadata.get_all('Requires-Dist', [])]
    assert {one.name for one in asked if one.marker is None} == {'jax', 'flax', 'jaxtyping', 'numpy'}
    assert {'train', 'tfds', 'cuda', 'tpu'} <= {*metadata.get_all('Provides-Extra', [])}
    assert any('pillow' == one.name and one.marker.evaluate({'extra': 'train'}) for one in asked if one.marker)


# ---- the package with only its core dependencies ----

PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
CORE = PROJECT['dependencies']
TRAIN = [*CORE, *PROJECT['optional-dependencies']['train']]
# Python's finders, except that the packages in the environment variable HIDDEN look as if they were not installed.
HIDE = """
import importlib.machinery
import os
import sys

HIDDEN = frozenset(os.environ.get('HIDDEN', '').split(','))


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
assert set(ea.__all__) - set(dict(inspect.getmembers(ea))) == {'evaluate', 'load', 'open_scorer', 'pipeline', 'train'}
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


def import_names_beyond(requirements: list[str]) -> set[str]:
    """Returns the import names of all installed packages that these requirements do not bring."""
    asked = packages_of(requirements)
    owners = importlib.metadata.packages_distributions()
    return {name for name, of in owners.items() if not {canonicalize_name(one) for one in of} & asked} - {PACKAGE}


def environment_with(requirements: list[str]) -> dict[str, str]:
    """Returns the environment variable with which `installed` finds only the packages of these requirements."""
    return {'HIDDEN': ','.join(sorted(import_names_beyond(requirements)))}


@pytest.fixture(scope='module')
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a virtual environment into which pip has installed the wheel, and nothing else of the checkout.

    It finds other packages where this Python has them, except those in the environment variable HIDDEN. Their files
    `*.pth` have no effect, so it misses the checkout.
    """
    folder = tmp_path_factory.mktemp('environment')
    venv.create(folder, symlinks=True)
    install = ('-m', 'pip', '--python', folder / 'bin' / 'python', 'install', '--no-compile')
    run_program(folder, sys.executable, *install, '--no-deps', '--no-index', wheel)
    (site,) = folder.glob('lib/python*/site-packages')
    (site / 'hide_packages.py').write_text(HIDE, encoding='utf-8')
    (site / 'hide.pth').write_text('import hide_packages\n', encoding='utf-8')
    (site / 'others.pth').write_text(f'{sysconfig.get_path("purelib")}\n', encoding='utf-8')
    return folder


def run_with_core(installed: Path, program: str) -> str:
    """Returns the output of a program that finds only the package, the core dependencies and their dependencies."""
    return run_program(installed, installed / 'bin' / 'python', '-c', program, **environment_with(CORE))


def test_packages_beyond_the_core_are_hidden():
    hidden = import_names_beyond(CORE)
    assert {'PIL', 'tokenizers', 'grain', 'array_record', 'ml_collections', 'tensorflow_datasets', 'pytest'} <= hidden
    assert not hidden & {'jax', 'jaxlib', 'flax', 'numpy', 'jaxtyping', 'scipy', 'optax', 'orbax'}


def test_attention_with_only_the_core(installed: Path):
    run_with_core(installed, ATTENTION)


def test_a_users_model_trains_with_only_the_core(installed: Path):
    run_with_core(installed, (ROOT / 'tests' / 'users' / 'nnx_model.py').read_text(encoding='utf-8'))


COMMAND = """
import sys

from efficient_attention.programs import dispatch

for words in ['--help'], ['train', '--help']:
    sys.argv[1:] = words
    dispatch.main()
"""


def test_the_command_with_only_the_core(installed: Path):
    command = [installed / 'bin' / 'python', '-c', COMMAND]
    settings = os.environ | environment_with(CORE)
    done = subprocess.run(command, cwd=installed, env=settings, capture_output=True, text=True, timeout=300)
    line = "error: efficient-attention train needs: pip install 'efficient-attention[train]'"
    assert (done.returncode, done.stderr.count('\n')) == (2, 1) and done.stderr.startswith(line), done.stderr
    assert '  fill-mask ' in done.stdout


def test_public_names_with_only_the_core(installed: Path):
    line, file = run_with_core(installed, NAMES).splitlines()
    assert line.startswith("ea.pipeline needs: pip install 'efficient-attention[train]' (No module named ")
    assert Path(file).is_relative_to(installed) and Path(file).name == '__init__.py'


@pytest.mark.slow
def test_type_checkers_see_the_signatures(installed: Path, tmp_path: Path):
    mypy = ROOT / '.venv-lint' / 'bin' / 'mypy'
    if not mypy.exists():
        pytest.skip('needs mypy, which `make lint` installs')
    programs = sorted((ROOT / 'tests' / 'users').glob('*.py'))
    # Flax has methods without types, so a user's function that returns their result returns Any.
    options = ('--strict', '--no-warn-return-any', '--python-executable', installed / 'bin' / 'python')
    run_program(tmp_path, mypy, *options, *programs)


# ---- the command, with the packages of the extra `train` ----


def test_the_environment_of_train_has_the_packages_of_the_extra_and_no_others(installed: Path):
    hidden, program = (
        import_names_beyond(TRAIN),
        'import importlib.util as find, sys; print(*filter(find.find_spec, sys.argv[1:]))',
    )
    assert {'pytest', 'optuna', 'chex', 'wandb', 'onnxruntime', 'tensorflow_datasets'} <= hidden
    asked = ('optuna', 'chex', 'tensorflow_datasets', 'grain', 'jinja2')
    python = installed / 'bin' / 'python'
    assert run_program(installed, python, '-c', program, *asked, **environment_with(TRAIN)) == 'grain jinja2\n'


def test_a_model_is_trained_evaluated_and_used_by_the_installed_command(installed: Path, tmp_path: Path):
    """Fine-tunes a config of the wheel by its name, in a folder that has no file of the checkout."""
    checkpoint, command = write_checkpoint(tmp_path / 'tiny', 'fill_mask'), installed / 'bin' / 'efficient-attention'
    rows = [f'{random_text(5, seed)},{"good" if seed % 2 else "bad"}' for seed in range(8)]
    (tmp_path / 'rows.csv').write_text('\n'.join(['text,label', *rows]) + '\n', encoding='utf-8')
    examples = (f'--config.examples.{split}=rows.csv' for split in ('train', 'dev'))
    sizes = ('--config.data.length=16', '--config.train.batch_size=4', '--config.train.steps=2')
    fields = (*examples, *sizes, f'--config.train.start_from={checkpoint}', '--config.eval.batch_size=4')
    settings = environment_with(TRAIN)
    run_program(tmp_path, command, 'train', '--config', 'finetune/table.py', '--workdir', 'run', *fields, **settings)
    metrics = json.loads(run_program(tmp_path, command, 'eval', '--workdir', 'run', **settings).splitlines()[-1])
    assert metrics['step'] == 2 and 0 <= metrics['accuracy'] <= 1
    predict = ('predict', '--model', 'run', '--output', 'out', '--split', 'dev', '--batch_size', '4')
    found = json.loads(run_program(tmp_path, command, *predict, **settings).splitlines()[-1])
    assert found['metrics']['accuracy'] == pytest.approx(metrics['accuracy'])
    [written] = (tmp_path / 'out').iterdir()
    assert len(written.read_text(encoding='utf-8').splitlines()) == len(rows)
