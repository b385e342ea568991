"""Ids to text while they arrive: what can be said of the text so far, without anything that later ids could change."""

import abc
import codecs

import numpy as np

from efficient_attention.data.text.units import Units

HELD_BACK = 8  # characters that a tokenizer's next pieces may still change, such as the spaces around an apostrophe
PARAGRAPH = '\n\n'  # what stands for a separator of documents that has no text of its own


class TextStream(abc.ABC):
    """Turns ids into text a few at a time: the returned parts, joined, are the text of all ids."""

    @abc.abstractmethod
    def feed(self, ids: np.ndarray) -> str:
        """The next part of the text: what later ids can no longer change."""

    def finish(self) -> str:
        """The rest of the text, held back because a later id could have changed it."""
        return ''


class ByteStream(TextStream):
    """Bytes: a character is returned once it is complete; what is no UTF-8 becomes the replacement character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')

    def feed(self, ids: np.ndarray) -> str:
        """The characters that these bytes complete."""
        return self._decoder.decode(ids.astype(np.uint8).tobytes())

    def finish(self) -> str:
        """The replacement character for one that stayed incomplete."""
        return self._decoder.decode(b'', final=True)


class CharacterStream(TextStream):
    """Ids that are one character each."""

    def __init__(self, units: Units) -> None:
        self._units = units

    def feed(self, ids: np.ndarray) -> str:
        """The text of the ids, a character for each, at once."""
        return self._units.decode(ids)


class PieceStream(TextStream):
    """Pieces whose text depends on their neighbours: all of them are decoded again, the last characters held back."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._ids = np.zeros(0, np.uint32)
        self._returned = 0  # characters

    def feed(self, ids: np.ndarray) -> str:
        """The text up to `HELD_BACK` characters before its end."""
        self._ids = np.concatenate([self._ids, ids.astype(np.uint32)])
        return self._up_to(-HELD_BACK)

    def finish(self) -> str:
        """The last characters, which no further piece can change now."""
        return self._up_to(None)

    def _up_to(self, end: int | None) -> str:
        """The text of all ids but what was returned and what comes after `end`."""
        more = self._text()[:end][self._returned :]
        self._returned += len(more)
        return more

    def _text(self) -> str:
        """The documents' texts with a blank line between them."""
        cuts = np.flatnonzero(np.isin(self._ids, self._units.separator))
        return PARAGRAPH.join(self._units.decode(ids) for ids in _between(self._ids, cuts))


def _between(ids: np.ndarray, cuts: np.ndarray) -> list[np.ndarray]:
    starts, ends = [0, *(cuts + 1)], [*cuts, len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True)]


def open_stream(units: Units) -> TextStream:
    """The stream for these units."""
    if units.text_of == 'bytes':
        return ByteStream()
    return CharacterStream(units) if units.text_of == 'characters' else PieceStream(units)
