"""Checks and opens the trackers of a run, and turns off those that fail."""

import configparser
import contextlib
import importlib.util
import math
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from efficient_attention.errors import InputError, RunStopped, missing_extra_error, one_line
from efficient_attention.workdir.trackers.csv_tracker import CsvTracker
from efficient_attention.workdir.trackers.separate_process import SeparateProcess
from efficient_attention.workdir.trackers.tensorboard_tracker import TensorBoardTracker
from efficient_attention.workdir.trackers.tracker import End, TrackedRun, Tracker

# the trackers that need no other package
OWN: dict[str, Callable[[TrackedRun], Tracker]] = {'tensorboard': TensorBoardTracker, 'csv': CsvTracker}
WITHOUT_LOGIN = ('offline', 'dryrun', 'disabled')  # values of WANDB_MODE with which wandb needs no key


def check_trackers(names: Sequence[str]) -> None:
    """Raises InputError if a tracker lacks its package, or Weights & Biases lacks a key. Imports no tracker."""
    for name in names:
        if name not in OWN and not is_installed(name):
            raise missing_extra_error(f'train.trackers={name}', 'trackers')
        if name == 'wandb' and not has_wandb_login():
            advice = 'run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline'
            raise InputError(f"train.trackers has 'wandb', which finds no key: {advice}")


def is_installed(package: str) -> bool:
    """Returns whether Python finds a package. A folder of this name without code, such as ./wandb, does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def has_wandb_login() -> bool:
    """Returns whether Weights & Biases finds a key, or does not need one because it is offline."""
    environment = os.environ
    if environment.get('WANDB_MODE') in WITHOUT_LOGIN:
        return True
    if any(environment.get(name) for name in ('WANDB_API_KEY', 'WANDB_IDENTITY_TOKEN_FILE')):
        return True
    home = Path.home()
    folders = (Path(environment.get('WANDB_CONFIG_DIR', home / '.config' / 'wandb')), Path('wandb'))
    if any(_has_login_setting(folder / 'settings') for folder in folders):
        return True
    host = urlsplit(environment.get('WANDB_BASE_URL', 'https://api.wandb.ai')).hostname or ''
    files = [Path(environment['NETRC'])] if 'NETRC' in environment else [home / '.netrc', home / '_netrc']
    return any(_has_password(path, host) for path in files)


def _has_login_setting(path: Path) -> bool:
    """Returns whether a settings file of wandb has a key, or turns the network off, as `wandb offline` does."""
    settings = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(OSError, configparser.Error, UnicodeError):
        settings.read(path)
    found = dict(settings['default']) if settings.has_section('default') else {}
    return 'api_key' in found or found.get('mode') in WITHOUT_LOGIN or found.get('disabled') == 'true'


def _has_password(path: Path, host: str) -> bool:
    try:
        return bool((netrc.netrc(path).authenticators(host) or ('', '', ''))[2])
    except (OSError, netrc.NetrcParseError, UnicodeError):
        return False


class Trackers:
    """All trackers of a run. A tracker that raises an error is turned off, with one printed line.

    As a context manager it finishes the trackers. The trackers start with their first metrics, or when `start` is
    called.

    Args:
        trackers: the trackers by name.
        print_line: prints a line on the terminal.
    """

    def __init__(self, trackers: Mapping[str, Tracker], print_line: Callable[[str], None]) -> None:
        self._trackers, self._print_line = dict(trackers), print_line
        self._is_started = False

    def start(self) -> None:
        """Starts all trackers, unless they have started."""
        if self._is_started:
            return
        self._is_started = True
        for name, tracker in [*self._trackers.items()]:
            with self._turned_off_at_error(name):
                if place := tracker.start():
                    self._print_line(f'tracker {name}: {place}')

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Sends the finite metrics of a split after `step` updates to all trackers."""
        named = {f'{split}/{name}': value for name, value in metrics.items() if math.isfinite(value)}
        self.start()
        for name, tracker in [*self._trackers.items()] if named else []:
            with self._turned_off_at_error(name):
                tracker.log(step, named)

    def finish(self, end: End) -> None:
        """Finishes all trackers that have started."""
        for name, tracker in [*self._trackers.items()] if self._is_started else []:
            with self._turned_off_at_error(name):
                tracker.finish(end)
        self._trackers = {}

    @contextlib.contextmanager
    def _turned_off_at_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del self._trackers[name]
            self._print_line(f'tracker {name} is off: {one_line(error) or type(error).__name__}')

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        is_stopped = kind is not None and issubclass(kind, (RunStopped, KeyboardInterrupt))
        self.finish('stopped' if is_stopped else 'failed' if kind else 'finished')


def open_trackers(names: Sequence[str], run: TrackedRun, print_line: Callable[[str], None]) -> Trackers:
    """Returns the trackers with these names, which have not started yet."""
    made: dict[str, Tracker] = {}
    for name in names:
        made[name] = OWN[name](run) if name in OWN else SeparateProcess(name, run, print_line)
    return Trackers(made, print_line)
