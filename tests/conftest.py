"""Configures JAX for the whole suite: strict promotion rules, on eight emulated CPU devices.

Dtype promotion is strict and rank promotion raises. Optax multiplies Python floats with int32 counts, so tests that
update parameters through it have the mark `lenient_promotion`, which covers their fixtures too.
"""

import contextlib
import ctypes
import gc
import os
import platform
import resource
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.quick_compile import FLAGS

PROGRAMS = 'JAX_COMPILATION_CACHE_DIR'

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Eight emulated devices share a few cores here. XLA aborts the process when one device waits over 40 seconds for
# another. On a very slow or halted machine it may wait longer.
PATIENCE = '--xla_cpu_collective_call_terminate_timeout_seconds=300'
EMULATED = f'--xla_force_host_platform_device_count=8 {PATIENCE}'
os.environ['XLA_FLAGS'] = f'{EMULATED} {FLAGS} {os.environ.get("XLA_FLAGS", "")}'.strip()
# A compiled program is kept for the other files and processes of this run.
# Later runs use it too if the environment names the folder of compiled programs.
TEMPORARY = None if PROGRAMS in os.environ else tempfile.mkdtemp(prefix='programs-')
os.environ.setdefault(PROGRAMS, TEMPORARY or '')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')

import jax  # noqa: E402  the variables above count only before JAX starts
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

from efficient_attention.data.sources.stdlib_documents import stdlib_files  # noqa: E402
from efficient_attention.processes import signal_thread  # noqa: E402
from tests.one_device import see_devices, see_one_device  # noqa: E402
from tests.quick_trace import shorten  # noqa: E402

signal_thread.catch_stop_signals = lambda **_: (
    None
)  # A script that a test runs in this process must not replace pytest's signal handlers.

LONGEST = (
    'test_join_hosts.py',
    'test_recorded_numbers.py',
    'test_attend.py',
    'test_documents.py',
    'test_fast_attention.py',
    'test_entry_points.py',
)
MOST_BYTES = 1_500_000_000
MORE_BYTES = 700_000_000  # Less growth than this since programs were last dropped leaves too little to drop.
MOST_MAPPINGS = 20_000
# Most tests in these folders do not depend on the number of devices, so they run on one.
# A file that needs several has the mark `devices` (all eight) or `devices(4)` (the first four).
ON_ONE_DEVICE = ('distillation', 'experiments', 'inference', 'interop', 'programs', 'scoring', 'scripts', 'tasks')
ON_ONE_DEVICE += ('training',)
# The only file whose runs make samples at evaluations, because each run would compile another program.
WITH_SAMPLES = 'test_run_samples.py'
# The part of the standard library that the text source `stdlib` reads here; to read all takes seconds in each process.
STDLIB = ('pydoc_data', 'email', 'json', 'logging', 'unittest')
LIGHT = ('attention', 'config', 'data', 'models', 'modules', 'objectives', 'recurrence')  # These folders never train.
SEARCHES = (10_000, 10, 10)  # thresholds of Python's garbage collector, which by default starts after 700 new objects
left_bytes = 0  # memory of this process after programs were last dropped
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')
shorten()
# The hook must precede the package's import: it checks the shapes in the signatures of attention/ at every call.
jaxtyping.install_import_hook('efficient_attention.attention', 'beartype.beartype')


def pytest_unconfigure() -> None:
    """Removes the compiled programs of this run."""
    if TEMPORARY:
        shutil.rmtree(TEMPORARY, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Defines the option --one-of-each, which the run with a second Python version uses."""
    parser.addoption('--one-of-each', action='store_true', help='of a test with parameters run the first of them alone')


@pytest.hookimpl(trylast=True)  # runs after the marks have selected the tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Moves the slowest files to the front, so that no process still has one to run at the end."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    if config.getoption('one_of_each'):
        first = {item.nodeid.partition('[')[0]: item for item in reversed(items)}
        chosen = {item.nodeid for item in first.values()}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_collection_finish() -> None:
    """Exempts the objects that live until the end, such as tests and imported modules, from later garbage
    collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SEARCHES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Runs a test and its fixtures, module-wide ones included, under the promotion rules that its marks ask for."""
    with contextlib.ExitStack() as rules:
        if item.get_closest_marker('lenient_promotion'):
            rules.enter_context(jax.numpy_dtype_promotion('standard'))
            rules.enter_context(jax.numpy_rank_promotion('allow'))
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test marked gpu or tpu where JAX has no such device."""
    for kind in ('gpu', 'tpu'):
        if item.get_closest_marker(kind) and jax.default_backend() != kind:
            pytest.skip(f'needs a {kind.upper()}')


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drops the compiled programs at the end of a file if this process uses much memory or many memory mappings.

    Linux gives a process 65,530 mappings by default. Each compiled program takes some, and the compiler crashes when
    none are left. A later file loads the programs that it needs from this run's cache folder.
    """
    global left_bytes
    is_end = nextitem is None or nextitem.path != item.path
    if is_end and Path('/proc/self/statm').exists() and is_full():
        jax.clear_caches()
        gc.collect()
        if platform.libc_ver()[0] == 'glibc':
            ctypes.CDLL('libc.so.6').malloc_trim(0)
        left_bytes = resident_bytes()


@pytest.fixture(autouse=True, scope='module')
def one_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes JAX show one device, or as many as the file's mark `devices` says, during a file of the folders
    `ON_ONE_DEVICE`.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    mark = request.node.get_closest_marker('devices')
    with pytest.MonkeyPatch.context() as patch:
        if mark and mark.args:
            see_devices(patch, *mark.args)
        elif folder in ON_ONE_DEVICE and not mark:
            see_one_device(patch)
        yield


@pytest.fixture(autouse=True, scope='module')
def runs_without_samples(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes runs of this process leave out the samples of evaluations, except in the file WITH_SAMPLES."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != WITH_SAMPLES and request.path.relative_to(Path(__file__).parent).parts[0] not in LIGHT:
            patch.setattr('efficient_attention.training.loop.make_sampler', lambda *_: None)
        yield


@pytest.fixture(autouse=True, scope='session')
def small_stdlib() -> Iterator[None]:
    """Makes the text source `stdlib` of this process read only the folders `STDLIB`."""
    root = Path(sysconfig.get_path('stdlib'))
    files = tuple(path for path in stdlib_files() if path.relative_to(root).parts[0] in STDLIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('efficient_attention.data.sources.text_source.stdlib_files', lambda: files)
        yield


def is_full() -> bool:
    """Returns whether this process uses more than the suite's share of memory, or many memory mappings."""
    is_large = resident_bytes() > max(MOST_BYTES, left_bytes + MORE_BYTES)
    return is_large or Path('/proc/self/maps').read_bytes().count(b'\n') > MOST_MAPPINGS


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path('/proc/self/statm').read_text().split()[1]) * resource.getpagesize()
