"""Runs a tracker of another project in a process of its own, to which metrics go through a pipe.

So the training process never waits for a server, imports nothing of the tracker, and survives its errors. Messages that
the pipe does not take wait in memory; `child_process.py` is the other end of the pipe.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import efficient_attention
from efficient_attention.errors import RunError
from efficient_attention.workdir.trackers.child_process import FOLDER
from efficient_attention.workdir.trackers.tracker import End, TrackedRun

MOST_PENDING = 2**20  # bytes of messages that may wait for a slow tracker
ANSWER_SECONDS = 300.0  # A tracker that has not answered for this long is turned off.
FINISH_SECONDS = 20.0  # The end of a run waits at most this long for a tracker.


class SeparateProcess:
    """A tracker in a process of its own. All methods return at once, except that `finish` waits `FINISH_SECONDS`.

    Each method raises RunError if the tracker has failed, or has not answered for `ANSWER_SECONDS`.

    Args:
        name: name of the tracker.
        run: the run.
        print_line: prints a line on the terminal, such as the address of the run's entry.
        command: the command of the process; None = the module `child_process.py`.
        clock: seconds.
    """

    def __init__(
        self,
        name: str,
        run: TrackedRun,
        print_line: Callable[[str], None],
        *,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._run, self._print_line, self._clock = name, run, print_line, clock
        # With -P, no file of the current folder hides a package.
        self._command = command or (sys.executable, '-P', '-m', f'{__package__}.child_process', name)
        self._log_path = run.workdir / FOLDER / f'{name}.log'
        self._pending, self._answers = b'', b''
        self._sent = self._done = 0  # numbers of messages
        self._answered = 0.0  # when the tracker last answered, or had nothing to do

    def start(self) -> str:
        """Starts the process, which then imports the tracker's package."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        # The package may be used from a checkout that is not installed.
        root = str(Path(efficient_attention.__file__).parents[1])
        path = os.pathsep.join(filter(None, (os.environ.get('PYTHONPATH'), root)))
        with self._log_path.open('ab') as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env={**os.environ, 'PYTHONPATH': path},
                start_new_session=True,  # Ctrl-C in the terminal reaches only the training process.
            )
        assert self._process.stdin and self._process.stdout
        self._requests, self._replies = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        os.set_blocking(self._replies.fileno(), False)
        self._answered = self._clock()
        run = self._run
        self._send({'run': {'workdir': str(run.workdir), 'config': run.config, 'start_step': run.start_step}})
        return ''

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the metrics of one step."""
        try:
            self._send({'step': step, 'metrics': dict(metrics)})
            self._check_progress()
        except RunError:
            self._kill()
            raise

    def finish(self, end: End) -> None:
        """Tells the tracker how the run ended, and waits until it has finished.

        A tracker that takes longer goes on alone, and ends itself after some minutes.
        """
        deadline = self._clock() + FINISH_SECONDS
        try:
            self._send({'finish': end})
            while self._pending and (left := deadline - self._clock()) > 0:
                select.select([], [self._requests], [], left)
                self._write_pending()
            self._requests.close()
            self._process.wait(max(deadline - self._clock(), 0.0))
            self._read_answers()
        except subprocess.TimeoutExpired:
            self._read_answers()
            waited = f'not finished after {FINISH_SECONDS:.0f} seconds, so it continues in the background'
            raise RunError(f'{waited} ({self._log_path})') from None
        finally:
            self._requests.close()
            self._replies.close()
        if self._process.returncode:
            raise self._ended_error()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._sent += 1
        self._pending += json.dumps(message).encode() + b'\n'
        self._write_pending()
        if len(self._pending) > MOST_PENDING:
            raise RunError(f'it reads no more metrics ({self._log_path})')

    def _write_pending(self) -> None:
        try:
            # A pipe that is not blocking takes a part of the bytes, or none (None).
            while self._pending and (written := self._requests.write(self._pending)):
                self._pending = self._pending[written:]
        except BrokenPipeError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._read_answers()
            raise self._ended_error() from None

    def _check_progress(self) -> None:
        """Raises RunError if the tracker has failed or hangs."""
        self._read_answers()
        if self._process.poll() is not None:
            raise self._ended_error()
        if self._clock() - self._answered > ANSWER_SECONDS:
            raise RunError(f'it has not answered for {ANSWER_SECONDS:.0f} seconds ({self._log_path})')

    def _read_answers(self) -> None:
        while chunk := self._replies.read(2**16):  # None if there is nothing to read yet
            self._answers += chunk
        *lines, self._answers = self._answers.split(b'\n')
        for answer in map(json.loads, lines):
            if 'failed' in answer:
                raise RunError(f'{answer["failed"]} ({self._log_path})')
            if answer.get('place'):
                self._print_line(f'tracker {self._name}: {answer["place"]}')
            self._done = answer.get('done', 1)
            self._answered = self._clock()
        if self._done == self._sent - 1:  # It has answered everything except the newest message.
            self._answered = self._clock()

    def _ended_error(self) -> RunError:
        return RunError(f'its process ended with exit code {self._process.returncode} ({self._log_path})')

    def _kill(self) -> None:
        self._requests.close()
        self._process.kill()
        # A process that waits for a dead network disk ends late; the training process does not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._replies.close()
