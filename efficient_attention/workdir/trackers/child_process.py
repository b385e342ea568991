"""Runs one tracker in a process of its own: reads messages from standard input, one JSON object per line.

The training process sends {"run": {...}}, then {"step": 10, "metrics": {...}} and at last {"finish": "finished"}. If
standard input ends before, the training process was killed. The tracker's record of the run, called its entry, is then
marked as stopped. Answers go to standard output: {"place": "..."} after the start, {"done": n} after n messages,
{"failed": "..."} at an error. Everything that the tracker's package prints goes to standard error, a log file in the
workdir.
"""

import json
import os
import secrets
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.errors import one_line
from efficient_attention.workdir.trackers.tracker import End, TrackedRun, Tracker, split_of

FOLDER = 'trackers'  # folder of a workdir with a log file and an entry file per tracker
PARENT_SECONDS = 5.0  # how often a waiting process checks whether the training process still exists
ENDING_SECONDS = 600.0  # The process ends itself this long after the last message, even if its tracker hangs.
# Settings of the packages for a process that nobody watches; the user's own environment variables win.
SETTINGS = {'WANDB_SILENT': 'true', 'WANDB_ERROR_REPORTING': 'false', 'MLFLOW_DISABLE_TELEMETRY': 'true'}
MakeTracker = Callable[[TrackedRun, str], Tracker]


def make_tracker(name: str) -> MakeTracker:
    """Returns the class of a tracker; a call of it with a run and the id of its entry makes the tracker."""
    if name == 'wandb':
        from efficient_attention.workdir.trackers.wandb_tracker import WandbTracker

        return WandbTracker
    if name == 'mlflow':
        from efficient_attention.workdir.trackers.mlflow_tracker import MlflowTracker

        return MlflowTracker
    from efficient_attention.workdir.trackers.trackio_tracker import TrackioTracker

    return TrackioTracker


class EntryFile:
    """The file `trackers/<name>.json` of a workdir: the id of the run's entry, and the last logged step of each split.

    A run that starts at step 0 gets a new id. A resumed run repeats the steps after its checkpoint, and a tracker
    cannot remove logged steps. So the resumed run logs only steps after the last logged step.
    """

    def __init__(self, path: Path, start_step: int) -> None:
        self._path = path
        self.id, self._logged = secrets.token_hex(4), dict[str, int]()
        if start_step > 0 and path.exists():
            found = json.loads(path.read_text(encoding='utf-8'))
            self.id, self._logged = str(found['id']), dict(found['logged'])
        self._write()

    def is_new(self, step: int, split: str) -> bool:
        """Returns whether the entry does not have this step of the split yet."""
        return step > self._logged.get(split, -1)

    def note_logged(self, step: int, split: str) -> None:
        """Stores that the entry has this step of the split."""
        self._logged[split] = step
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps({'id': self.id, 'logged': self._logged}) + '\n')


def serve(name: str, make: MakeTracker) -> None:
    """Runs a tracker until the training process sends the end of the run or ends itself.

    Args:
        name: name of the tracker.
        make: makes the tracker from the run and the id of its entry.
    """
    # The training process decides when a run stops, so Ctrl-C and a scheduler's signal must not end this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # Everything that the tracker's package prints goes to the log file.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # A package that asks a question gets no answer.
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)

    def answer(message: dict[str, Any]) -> None:
        os.write(answers, json.dumps(message).encode() + b'\n')

    try:
        handle_messages(read_messages(requests), name, make, answer)
    except Exception as error:
        traceback.print_exc()
        try:
            answer({'failed': one_line(error) or type(error).__name__})
        except BrokenPipeError:  # the training process has ended
            os._exit(1)
        os._exit(1)
    sys.stderr.flush()
    # The end of Python would wait for threads that the tracker's package may have left.
    os._exit(0)


def read_messages(descriptor: int) -> Iterator[dict[str, Any]]:
    """Yields the messages of the training process until it closes the pipe or ends. A cut last message is left out.

    A forked worker of a killed training process may keep the pipe open, so the process itself is watched too.
    """
    parent, rest = os.getppid(), b''
    while True:
        if not select.select([descriptor], [], [], PARENT_SECONDS)[0]:
            if os.getppid() != parent:
                return
            continue
        chunk = os.read(descriptor, 2**16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b'\n')
        yield from map(json.loads, lines)


def handle_messages(
    messages: Iterator[dict[str, Any]], name: str, make: MakeTracker, answer: Callable[[dict[str, Any]], None]
) -> None:
    """Starts a tracker, logs each message of metrics, and finishes the tracker after the last message."""
    first = next(messages)['run']
    run = TrackedRun(Path(first['workdir']), first['config'], first['start_step'])
    entry = EntryFile(run.workdir / FOLDER / f'{name}.json', run.start_step)
    tracker = make(run, entry.id)
    answer({'place': tracker.start()})
    end: End = 'stopped'
    done = 1
    for message in messages:
        if 'finish' in message:
            end = message['finish']
            break
        step, metrics = message['step'], message['metrics']
        if entry.is_new(step, split_of(metrics)):
            tracker.log(step, metrics)
            entry.note_logged(step, split_of(metrics))
        done += 1
        answer({'done': done})
    timer = threading.Timer(ENDING_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
    tracker.finish(end)
    timer.cancel()


if __name__ == '__main__':
    serve(sys.argv[1], make_tracker(sys.argv[1]))
