"""Measures the memory of this host, or of the container in which the process runs: total bytes and unused share."""

import os
from pathlib import Path

MEMINFO = Path('/proc/meminfo')
# Files with memory limit, use and statistics of a container, in versions 2 and 1 of Linux's control groups.
CONTAINERS = tuple(
    tuple(Path('/sys/fs/cgroup') / name for name in names)
    for names in (
        ('memory.max', 'memory.current', 'memory.stat'),
        ('memory/memory.limit_in_bytes', 'memory/memory.usage_in_bytes', 'memory/memory.stat'),
    )
)


def host_memory() -> int:
    """Returns the bytes of this host's memory, or the limit of the container if that is less."""
    return min([os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'), *map(read_integer_file, container_limits())])


def unused_memory_share() -> float:
    """Returns the share of memory that is free for new allocations; file caches that the system can drop count as free.

    Returns the smaller of the host's share and the container's share; 1.0 if the system provides no figures.
    """
    shares = [1.0]
    if MEMINFO.is_file():
        fields = dict(line.split(':', 1) for line in MEMINFO.read_text().splitlines() if ':' in line)
        if {'MemTotal', 'MemAvailable'} <= fields.keys():
            total, available = (int(fields[name].split()[0]) for name in ('MemTotal', 'MemAvailable'))
            shares.append(available / total)
    for limit, use, statistics in CONTAINERS:
        if limit in container_limits() and use.is_file() and statistics.is_file():
            used = read_integer_file(use) - read_statistic(statistics, 'inactive_file')
            shares.append(max(0.0, 1.0 - used / read_integer_file(limit)))
    return min(shares)


def container_limits() -> list[Path]:
    """Returns the files that state a memory limit of this container."""
    return [limit for limit, *_ in CONTAINERS if limit.is_file() and limit.read_text().strip().isdecimal()]


def read_integer_file(path: Path) -> int:
    """Returns the integer that a file contains."""
    return int(path.read_text())


def read_statistic(path: Path, name: str) -> int:
    """Returns a value from a file whose lines have a name and a number; 0 if the name is missing."""
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(number) for key, number in lines if key == name), 0)
