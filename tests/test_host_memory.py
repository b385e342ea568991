"""Tests the size of the memory and its unused share, on a host and in a container."""

from pathlib import Path

import pytest

from efficient_attention import host_memory as module
from efficient_attention.host_memory import host_memory, unused_memory_share


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns the empty folder of a control group, on a host with a quarter of its memory unused."""
    (tmp_path / 'meminfo').write_text('MemTotal: 400 kB\nMemFree: 10 kB\nMemAvailable: 100 kB\n')
    monkeypatch.setattr(module, 'MEMINFO', tmp_path / 'meminfo')
    files = tuple(tmp_path / name for name in ('memory.max', 'memory.current', 'memory.stat'))
    monkeypatch.setattr(module, 'CONTAINERS', (files,))
    return tmp_path


def test_this_host_has_memory():
    assert 2**28 < host_memory() < 2**60
    assert 0.0 < unused_memory_share() <= 1.0


def test_a_host_without_a_container(container: Path, monkeypatch: pytest.MonkeyPatch):
    assert unused_memory_share() == 0.25
    (container / 'memory.max').write_text('max\n')
    assert unused_memory_share() == 0.25 and host_memory() > 2**28
    monkeypatch.setattr(module, 'MEMINFO', container / 'none')
    assert unused_memory_share() == 1.0


@pytest.mark.parametrize('used, cached, share', [(900, 0, 0.1), (900, 400, 0.25), (1100, 0, 0.0)])
def test_a_container_has_a_limit_of_its_own(container: Path, used: int, cached: int, share: float):
    (container / 'memory.max').write_text('1000\n')
    (container / 'memory.current').write_text(f'{used}\n')
    (container / 'memory.stat').write_text(f'anon 1\ninactive_file {cached}\nactive_file 7\n')
    assert host_memory() == 1000
    assert unused_memory_share() == pytest.approx(share)
