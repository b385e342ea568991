"""Tests that TensorBoard can read the written events, and that a run does not wait if they cannot be written."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from efficient_attention.workdir.tensorboard_events import EventsFile


def read(path: Path) -> list[Event]:
    """Returns the events of a file after comparing each checksum."""
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack('<Q', content[:8])
        assert struct.unpack('<I', content[8:12])[0] == masked_crc32c(content[:8])
        event, rest = content[12 : 12 + length], content[12 + length :]
        assert struct.unpack('<I', rest[:4])[0] == masked_crc32c(event)
        found.append(Event.FromString(event))
        content = rest[4:]
    return found


def scalars(path: Path) -> list[tuple[int, str, float]]:
    return [(event.step, value.tag, value.simple_value) for event in read(path) for value in event.summary.value]


def test_numbers_come_back_and_older_files_end_at_the_first_step(tmp_path: Path):
    events = EventsFile(tmp_path / 'new', first_step=5)
    events.add_scalars(7, {'train/loss': 0.5, 'train/rate': 2.0})
    (path,) = (tmp_path / 'new').iterdir()
    assert scalars(path) == [(7, 'train/loss', 0.5), (7, 'train/rate', 2.0)]  # readable before the file is closed
    events.close()
    first, start, *_ = read(path)
    assert first.file_version == 'brain.Event:2' and (start.step, start.session_log.status) == (5, 1)


def test_events_that_cannot_be_written_are_left_out_and_it_is_said_once(tmp_path: Path, caplog):
    events = EventsFile(tmp_path, first_step=1)
    (path,) = tmp_path.iterdir()
    for step in range(1, 40):
        if step == 3:
            events._file = HalfWritten(events._file)
        events.add_scalars(step, {'loss': float(step)})
    events._file = events._file.file
    events.add_scalars(40, {'loss': 40.0})
    events.close()
    assert scalars(path) == [(1, 'loss', 1.0), (2, 'loss', 2.0), (40, 'loss', 40.0)]
    (line,) = caplog.messages
    assert (
        line == f'{path}: cannot be written (No space left on device); metrics.jsonl has the numbers that are missing'
    )


class HalfWritten:
    """Imitates a file on a full disk, which stores only 5 bytes of each write and then fails."""

    def __init__(self, file) -> None:
        self.file, self.is_full = file, False

    def write(self, content: bytes) -> int:
        self.is_full = not self.is_full
        if not self.is_full:
            raise OSError(28, 'No space left on device')
        return self.file.write(content[:5])

    def __getattr__(self, name: str):
        return getattr(self.file, name)
