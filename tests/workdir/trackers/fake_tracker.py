"""A tracker that writes its calls to `calls.txt`, in a process like those of the real trackers.

Its first argument says how it misbehaves: 'well', 'fails' (at step 2), 'dies' (at step 2), 'hangs' (at step 2), 'lazy'
(never reads a message) or 'endless' (when it finishes).
"""

import os
import sys
import time
from collections.abc import Mapping

from efficient_attention.workdir.trackers.child_process import serve
from efficient_attention.workdir.trackers.tracker import End, TrackedRun


class FakeTracker:
    """Writes its calls to a file of the workdir."""

    def __init__(self, run: TrackedRun, entry: str) -> None:
        self._run, self._entry = run, entry

    def _write(self, line: str) -> None:
        with (self._run.workdir / 'calls.txt').open('a') as file:
            file.write(f'{line}\n')

    def start(self) -> str:
        print('chatter')
        print('more chatter', file=sys.stderr)
        self._write(f'start {self._entry} {self._run.config["train.steps"]}')
        return 'at home'

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == 2 and KIND == 'fails':
            raise ValueError('no such\nserver')
        if step == 2 and KIND == 'dies':
            os._exit(7)
        if step == 2 and KIND == 'hangs':
            time.sleep(60)
        self._write(f'{step} {dict(metrics)}')

    def finish(self, end: End) -> None:
        if KIND == 'endless':
            time.sleep(60)
        self._write(end)


KIND = sys.argv[1]
if KIND == 'lazy':
    time.sleep(60)
serve('fake', FakeTracker)
