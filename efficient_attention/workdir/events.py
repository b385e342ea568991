"""TensorBoard's events of a run: its numbers once more, in the form that TensorBoard draws.

Written here and not by tensorboardX's writer: that one hands events to a thread through a queue, the thread dies when
the disk is full, and the run then waits for ever to put the next event into the queue.
"""

import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from efficient_attention.whole_files import cannot_be_written

LOG = logging.getLogger(__name__)


class EventsFile:
    """A new file of events in a folder. Events that cannot be written are left out, which is said once.

    Args:
        folder: made where it is missing.
        first_step: of the events; TensorBoard drops later ones of the folder's older files.

    Raises:
        RunError, InputError: the folder or file cannot be made.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self._path = folder / f'events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}'
        self._is_whole = True
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open('wb', buffering=0)
        except OSError as error:
            raise cannot_be_written(self._path, error) from None
        start = Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START))
        self._write([Event(wall_time=time.time(), file_version='brain.Event:2'), start])

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Appends the numbers, by their names in TensorBoard ('train/loss')."""
        now = time.time()
        self._write([Event(wall_time=now, step=step, summary=scalar(name, number)) for name, number in numbers.items()])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, events: list[Event]) -> None:
        content = b''.join(_record(event.SerializeToString()) for event in events)
        try:
            while content:
                content = content[self._file.write(content) :]
            self._size = self._file.tell()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)  # TensorBoard reads no further than to half an event
                self._file.seek(self._size)
            if self._is_whole:
                LOG.error('%s; metrics.jsonl has the numbers that are missing', cannot_be_written(self._path, error))
            self._is_whole = False


def _record(content: bytes) -> bytes:
    """A record of a TFRecord file: its length, the check sum of that, the content, and its check sum."""
    length = struct.pack('<Q', len(content))
    sums = [struct.pack('<I', masked_crc32c(part)) for part in (length, content)]
    return length + sums[0] + content + sums[1]
