"""Tests what makes programs of the suite cheap: a cache that survives damaged entries, and shared MLIR contexts."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import jax

from tests import quick_lower

ROOT = Path(__file__).resolve().parents[1]
TEST = 'import jax\n\n\ndef test_a_program():\n    assert jax.jit(lambda x: 2 * x)(3) == 6\n'


def test_a_half_written_program_is_compiled_again(tmp_path: Path):
    """A process leaves such an entry when it is stopped during a write, or while it is still writing."""
    (tmp_path / 'test_program.py').write_text(TEST, encoding='utf-8')
    programs = tmp_path / 'programs'
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-c', str(ROOT / 'pyproject.toml')]
    command += ['--rootdir', str(tmp_path), str(tmp_path / 'test_program.py')]
    options = {'JAX_COMPILATION_CACHE_DIR': str(programs), 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | options, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        entries = [path for path in programs.iterdir() if path.name.endswith('-cache')]
        assert entries
        for path in entries:
            path.write_bytes(path.read_bytes()[:20])


def lowered_context(number: float) -> object:
    """Returns the MLIR context of a small program."""
    return jax.jit(lambda x: x + number).lower(1.0).compiler_ir().context


def test_the_programs_of_a_thread_share_a_context_until_it_is_replaced():
    contexts, elsewhere = [lowered_context(1.0), lowered_context(2.0)], []
    thread = threading.Thread(target=lambda: elsewhere.append(lowered_context(3.0)))
    thread.start()
    thread.join()
    quick_lower.shared.uses = quick_lower.PROGRAMS
    contexts += [lowered_context(4.0), lowered_context(5.0)]
    assert contexts[0] is contexts[1] and contexts[2] is contexts[3]
    assert contexts[0] is not contexts[2] and elsewhere[0] not in contexts
