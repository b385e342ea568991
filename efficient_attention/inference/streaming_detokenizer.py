"""Decodes generated token ids to text while they arrive; returns only text that later ids cannot change."""

import abc
import codecs

import numpy as np

from efficient_attention.data.text.text_units import TextUnits

HELD_BACK = 8  # number of last characters that later tokens may still change
PARAGRAPH = '\n\n'  # output text for a document separator


class StreamingDetokenizer(abc.ABC):
    """Decodes token ids to text, a few ids at a time; the returned parts together are the text of all ids."""

    @abc.abstractmethod
    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the next part of the text: as much of it as later ids cannot change."""

    def flush_text(self) -> str:
        """Returns the rest of the text, when no more ids will come."""
        return ''


class ByteDetokenizer(StreamingDetokenizer):
    """Decodes UTF-8 bytes: returns each character once all its bytes have arrived; invalid bytes give the replacement
    character.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')

    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the characters that are complete after these bytes."""
        return self._decoder.decode(ids.astype(np.uint8).tobytes())

    def flush_text(self) -> str:
        """Returns the replacement character if the last character is incomplete, else ''."""
        return self._decoder.decode(b'', final=True)


class CharacterDetokenizer(StreamingDetokenizer):
    """Decodes token ids of a character vocabulary, in which each id is one character."""

    def __init__(self, units: TextUnits) -> None:
        self._units = units

    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the text of the ids immediately, one character per id."""
        return self._units.decode(ids)


class PieceDetokenizer(StreamingDetokenizer):
    """Decodes ids of subword tokens, whose text can depend on neighbouring tokens.

    Decodes all ids again at each call, and delays the last characters.
    """

    def __init__(self, units: TextUnits) -> None:
        self._units = units
        self._ids = np.zeros(0, np.uint32)
        self._returned = 0  # number of characters returned so far

    def feed_ids(self, ids: np.ndarray) -> str:
        """Returns the new text, except its last `HELD_BACK` characters, which later tokens may change."""
        self._ids = np.concatenate([self._ids, ids.astype(np.uint32)])
        return self._decode_up_to(-HELD_BACK)

    def flush_text(self) -> str:
        """Returns the last characters, which were held back because later tokens could have changed them."""
        return self._decode_up_to(None)

    def _decode_up_to(self, end: int | None) -> str:
        """Returns the text of all ids up to character `end`, without the characters that were already returned."""
        more = self._decode_documents()[:end][self._returned :]
        self._returned += len(more)
        return more

    def _decode_documents(self) -> str:
        """Returns the texts of all documents so far, with a blank line between documents."""
        cuts = np.flatnonzero(np.isin(self._ids, self._units.separator))
        return PARAGRAPH.join(self._units.decode(ids) for ids in _split_at_separators(self._ids, cuts))


def _split_at_separators(ids: np.ndarray, cuts: np.ndarray) -> list[np.ndarray]:
    starts, ends = [0, *(cuts + 1)], [*cuts, len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True)]


def make_detokenizer(units: TextUnits) -> StreamingDetokenizer:
    """Returns the streaming decoder for a vocabulary of bytes, characters or subword tokens."""
    if units.text_of == 'bytes':
        return ByteDetokenizer()
    return CharacterDetokenizer(units) if units.text_of == 'characters' else PieceDetokenizer(units)
