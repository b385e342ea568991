"""Decodes ids to text as they arrive; returns only text that later ids cannot change."""

import abc
import codecs

import numpy as np

from efficient_attention.data.text.units import TextUnits

HELD_BACK = 8  # characters that later pieces may still change, such as spaces around an apostrophe
PARAGRAPH = '\n\n'  # stands for a document separator that has no text


class TextStream(abc.ABC):
    """Decodes ids to text a few at a time; the returned parts, joined, are the text of all ids."""

    @abc.abstractmethod
    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the next part of the text, up to where later ids could still change it."""

    def flush_text(self) -> str:
        """Returns the rest of the text."""
        return ''


class ByteStream(TextStream):
    """Decodes bytes: a character is returned once complete; invalid UTF-8 becomes the replacement character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')

    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the characters that these bytes complete."""
        return self._decoder.decode(ids.astype(np.uint8).tobytes())

    def flush_text(self) -> str:
        """Returns the replacement character if a character stayed incomplete, else ''."""
        return self._decoder.decode(b'', final=True)


class CharacterStream(TextStream):
    """Decodes ids that stand for one character each."""

    def __init__(self, units: TextUnits) -> None:
        self._units = units

    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the text of the ids at once, one character per id."""
        return self._units.decode(ids)


class PieceStream(TextStream):
    """Decodes pieces whose text depends on their neighbours: decodes all ids each time, delays the last characters."""

    def __init__(self, units: TextUnits) -> None:
        self._units = units
        self._ids = np.zeros(0, np.uint32)
        self._returned = 0  # number of characters

    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the new text, up to `HELD_BACK` characters before its end."""
        self._ids = np.concatenate([self._ids, ids.astype(np.uint32)])
        return self._decode_up_to(-HELD_BACK)

    def flush_text(self) -> str:
        """Returns the delayed last characters, which no further piece can change."""
        return self._decode_up_to(None)

    def _decode_up_to(self, end: int | None) -> str:
        """Returns the text of all ids up to `end`, without the part already returned."""
        more = self._decode_documents()[:end][self._returned :]
        self._returned += len(more)
        return more

    def _decode_documents(self) -> str:
        """Returns the documents' texts, with a blank line between them."""
        cuts = np.flatnonzero(np.isin(self._ids, self._units.separator))
        return PARAGRAPH.join(self._units.decode(ids) for ids in _split_at_separators(self._ids, cuts))


def _split_at_separators(ids: np.ndarray, cuts: np.ndarray) -> list[np.ndarray]:
    starts, ends = [0, *(cuts + 1)], [*cuts, len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True)]


def open_stream(units: TextUnits) -> TextStream:
    """Returns the stream for units of this kind."""
    if units.text_of == 'bytes':
        return ByteStream()
    return CharacterStream(units) if units.text_of == 'characters' else PieceStream(units)
