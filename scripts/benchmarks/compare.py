"""Compares the figures of two runs of the same benchmark (`scripts/benchmark.py compare OLD NEW`).

A figure is a median over repeats with its range, such as `milliseconds` and `milliseconds_range`. A figure has moved if
its ranges in the two runs do not overlap. The files OLD and NEW are outputs of `scripts/measure_gpu.py`, or of a
sub-command of `scripts/benchmark.py` that writes ranges.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, is_number, one_line

RANGE = '_range'
UNNAMED = ('cases',)  # keys of a report that are not a part of the names of figures


class Figure(NamedTuple):
    """The median, smallest and largest value of a measurement over its repeats."""

    median: float
    low: float
    high: float


def print_comparison(arguments: list[str]) -> None:
    """Prints the figures that moved between the two files of the command line, then a line with counts.

    Raises:
        InputError: a file cannot be read or has no figures, or the files have no figure in common.
    """
    paths = [
        Path(word) for word in parse_flags(arguments, options=flags.FlagValues(), words='OLD NEW', command='compare')
    ]
    old, new = (read_report(path) for path in paths)
    if old.get('part') != new.get('part'):
        raise InputError(f'{paths[0]} has the part {old.get("part")}, {paths[1]} the part {new.get("part")}')
    before, after = (dict(figures_of(report)) for report in (old, new))
    for path, found in zip(paths, (before, after), strict=True):
        if not found:
            raise InputError(f'{path}: no figure with a range over repeats')
    shared = [name for name in before if name in after]
    if not shared:
        raise InputError(f'{paths[0]} and {paths[1]} have no figure in common')
    if device_of(old) != device_of(new):
        print(f'the devices differ: {device_of(old)}, then {device_of(new)}')
    moved = [name for name in shared if has_moved(before[name], after[name])]
    for name in sorted(moved, key=lambda name: after[name].median / max(before[name].median, 1e-30)):
        print(f'{describe_move(before[name], after[name])}  {name}')
    print(
        f'{len(shared)} figures compared: {len(moved)} moved, {len(shared) - len(moved)} unchanged; '
        f'{len(before) - len(shared)} only in {paths[0]}, {len(after) - len(shared)} only in {paths[1]}'
    )
    sys.stdout.flush()


def read_report(path: Path) -> Mapping[str, Any]:
    """Returns the report in a JSON file; raises InputError if it cannot be read or is not a report."""
    try:
        report = read_json_file(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise InputError(f'{path}: {reason}') from None
    if not isinstance(report, dict):
        raise InputError(f'{path}: not a report of a benchmark')
    return report


def figures_of(report: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Figure]]:
    """Yields the name and value of each figure of a report, except tokens/s of results that have milliseconds."""
    for name, value in report.items():
        if isinstance(value, dict):
            yield from figures_of(value, path if name in UNNAMED else (*path, str(name)))
        elif is_number(value) and not (name == 'tokens_per_second' and 'milliseconds' in report):
            spread = report.get(f'{name}{RANGE}', report.get('range') if name == 'tokens_per_second' else None)
            if isinstance(spread, list) and len(spread) == 2 and all(map(is_number, spread)):
                yield ' / '.join((*path, name)), Figure(float(value), *map(float, spread))


def has_moved(old: Figure, new: Figure) -> bool:
    """Returns whether the ranges of two figures do not overlap."""
    return old.high < new.low or new.high < old.low


def describe_move(old: Figure, new: Figure) -> str:
    """Returns a text with the ratio of two medians, and the two medians."""
    ratio = f'{new.median / old.median:.3f}' if old.median else 'inf'
    return f'x {ratio:>7}  {old.median:>12.5g} -> {new.median:<12.5g}'


def device_of(report: Mapping[str, Any]) -> str:
    """Returns the device of a report, or its platform if it names no device."""
    machine = report.get('machine')
    machine = machine if isinstance(machine, dict) else {}
    return str(machine.get('device', machine.get('platform', 'unknown')))
