"""The memory of this host, or of the container that the process runs in: how much there is, and how much is unused."""

import os
from pathlib import Path

MEMINFO = Path('/proc/meminfo')
# (limit, use, statistics) of a container, in the two versions of Linux's control groups.
CONTAINERS = tuple(
    tuple(Path('/sys/fs/cgroup') / name for name in names)
    for names in (
        ('memory.max', 'memory.current', 'memory.stat'),
        ('memory/memory.limit_in_bytes', 'memory/memory.usage_in_bytes', 'memory/memory.stat'),
    )
)


def host_memory() -> int:
    """Bytes of this host's memory, or of the share of it that a container may use."""
    return min([os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'), *map(number_in, container_limits())])


def unused_share() -> float:
    """The share of the host's or the container's memory that new allocations can have, caches of files included.

    Of both the smaller one; 1.0 where the system does not tell.
    """
    shares = [1.0]
    if MEMINFO.is_file():
        fields = dict(line.split(':', 1) for line in MEMINFO.read_text().splitlines() if ':' in line)
        if {'MemTotal', 'MemAvailable'} <= fields.keys():
            total, available = (int(fields[name].split()[0]) for name in ('MemTotal', 'MemAvailable'))
            shares.append(available / total)
    for limit, use, statistics in CONTAINERS:
        if limit in container_limits() and use.is_file() and statistics.is_file():
            used = number_in(use) - statistic(statistics, 'inactive_file')
            shares.append(max(0.0, 1.0 - used / number_in(limit)))
    return min(shares)


def container_limits() -> list[Path]:
    """The files that hold a limit of this container."""
    return [limit for limit, *_ in CONTAINERS if limit.is_file() and limit.read_text().strip().isdecimal()]


def number_in(path: Path) -> int:
    """The whole number that a file holds."""
    return int(path.read_text())


def statistic(path: Path, name: str) -> int:
    """A number of a file with lines of name and number; 0 where it is missing."""
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(number) for key, number in lines if key == name), 0)
