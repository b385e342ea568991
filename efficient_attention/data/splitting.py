"""Which documents are held out for evaluation: those whose text hashes below a threshold, whatever their order."""

import hashlib
from collections.abc import Sequence

from efficient_attention.errors import InputError

HASHES = 2**64


def document_hash(document: str | bytes) -> int:
    """A hash of a document's text, or of an image's bytes, uniform in [0, 2**64)."""
    content = document.encode() if isinstance(document, str) else document
    return int.from_bytes(hashlib.sha256(content).digest()[:8], 'big')


def held_out_threshold(hashes: Sequence[int], share: float) -> int:
    """The threshold below which a document is held out.

    Both splits get a document where 0 < share < 1: a small corpus holds out the one with the smallest hash, or trains
    on the one with the largest. Documents with the same text are on the same side.

    Args:
        hashes: `document_hash` of every document, at least one.
        share: of the documents to hold out, in [0, 1]; 0 and 1 leave a split empty.

    Raises:
        InputError: 0 < share < 1 and the documents are one text.
    """
    threshold = int(share * HASHES)
    if share in (0, 1):
        return threshold
    lowest, highest = min(hashes), max(hashes)
    if lowest == highest:
        raise InputError('the corpus is one document, none is left to hold out; use #paragraphs or data.held_out=0')
    return min(max(threshold, lowest + 1), highest)
