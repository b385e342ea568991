"""Tests that a damaged entry in the suite's cache of compiled programs fails no test."""

import os
import subprocess
import sys
from pathlib import Path

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
