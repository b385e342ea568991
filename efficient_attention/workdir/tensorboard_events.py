"""Writes the metrics of a run as TensorBoard events, without a background thread.

This replaces tensorboardX's writer, which passes events to a thread through a queue. If the disk is full, that thread
dies, and the run then waits forever to put the next event into the queue.
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

from efficient_attention.atomic_files import write_failed_error

LOG = logging.getLogger(__name__)


class EventsFile:
    """Writes a new file of TensorBoard events in a folder. Events that cannot be written are dropped, with a single
    error line for all of them.

    Args:
        folder: created if missing.
        first_step: step of the first event; TensorBoard drops events from this step on in older files of the folder.

    Raises:
        RunError, InputError: the folder or file cannot be created.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self._path = folder / f'events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}'
        self._is_whole = True
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open('wb', buffering=0)
        except OSError as error:
            raise write_failed_error(self._path, error) from None
        start = Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START))
        self._write_events([Event(wall_time=time.time(), file_version='brain.Event:2'), start])

    def add_scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """Appends the metrics of one step, under their TensorBoard names, such as 'train/loss'."""
        now = time.time()
        self._write_events(
            [Event(wall_time=now, step=step, summary=scalar(name, number)) for name, number in numbers.items()]
        )

    def close(self) -> None:
        """Closes the events file."""
        self._file.close()

    def _write_events(self, events: list[Event]) -> None:
        content = b''.join(_tfrecord_bytes(event.SerializeToString()) for event in events)
        try:
            while content:
                content = content[self._file.write(content) :]
            self._size = self._file.tell()
        except OSError as error:
            with contextlib.suppress(OSError):
                # The incomplete event is cut off, because TensorBoard stops reading at such an event.
                self._file.truncate(self._size)
                self._file.seek(self._size)
            if self._is_whole:
                LOG.error('%s; metrics.jsonl has the numbers that are missing', write_failed_error(self._path, error))
            self._is_whole = False


def _tfrecord_bytes(content: bytes) -> bytes:
    """Returns one record in the TFRecord format: its length, checksum of the length, content, checksum of the
    content.
    """
    length = struct.pack('<Q', len(content))
    sums = [struct.pack('<I', masked_crc32c(part)) for part in (length, content)]
    return length + sums[0] + content + sums[1]
