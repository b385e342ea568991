"""Selects the held-out documents of a corpus by a hash of each document, so that the order of the documents does not
matter."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from efficient_attention.errors import InputError

HASHES = 2**64
# If a token's loss has a standard deviation of 3 bits, the mean over 10,000 tokens has a standard error of 0.03 bits.
FEW_TOKENS = 10_000
FAR_OFF = 2.0  # If the actual and the requested share differ by more than this factor, a run prints the actual share.


class SingleDocumentError(InputError):
    """The source has only one document, which cannot be divided into splits; the caller adds a remedy to the
    message."""


def document_hash(document: str | bytes) -> int:
    """Returns a hash of a document's text, or of an image's bytes, uniform in [0, 2**64)."""
    content = document.encode() if isinstance(document, str) else document
    return int.from_bytes(hashlib.sha256(content).digest()[:8], 'big')


def held_out_threshold(hashes: Sequence[int], share: float) -> int:
    """Computes the threshold for held-out documents: a document is held out if its hash is below the threshold.

    With 0 < share < 1, both splits get a document: a small corpus holds out the document with the smallest hash, or
    trains on the one with the largest. Documents with equal texts are in the same split.

    Args:
        hashes: `document_hash` of every document, at least one.
        share: share of held-out documents, in [0, 1]; 0 and 1 leave a split empty.

    Raises:
        SingleDocumentError: 0 < share < 1 and all documents have the same text.
    """
    threshold = int(share * HASHES)
    if share in (0, 1):
        return threshold
    lowest, highest = min(hashes), max(hashes)
    if lowest == highest:
        raise SingleDocumentError('it is one document, so none is left to hold out')
    return min(max(threshold, lowest + 1), highest)


def more_documents_advice(source: str) -> str:
    """Returns a remedy for a source with too few documents, as part of an error message."""
    is_whole_files = source.startswith('text:') and '#' not in source
    return f"data.source='{source}#paragraphs' (blank lines separate documents)" if is_whole_files else 'more documents'


def split_counts(manifest: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the numbers of training and held-out documents, and of training and held-out tokens, from the manifest of
    a prepared corpus or text."""
    train, held_out = manifest['counts']['train'], manifest['counts']['held_out']
    return (train['documents'], held_out['documents']), (train['tokens'], held_out['tokens'])


def held_out_share_note(share: float, documents: tuple[int, int], tokens: tuple[int, int]) -> list[str]:
    """Returns a warning, as a list of one line, if the held-out share of tokens differs much from the requested share
    of documents; otherwise [].

    Args:
        share: `data.held_out`.
        documents: number of training and of held-out documents.
        tokens: number of training and of held-out tokens.
    """
    found = tokens[1] / max(sum(tokens), 1)
    if not share or share / FAR_OFF <= found <= share * FAR_OFF:
        return []
    return [
        f'held out: {documents[1]:,} of {sum(documents):,} documents with {found:.1%} of the tokens; '
        f'data.held_out={share:g} is a share of documents, and these are few or of very different lengths'
    ]


def few_held_out_note(share: float, tokens: tuple[int, int]) -> list[str]:
    """Returns a warning, as a list of one line, if there are so few held-out tokens that scores are partly chance;
    otherwise [].

    Args:
        share: `data.held_out`.
        tokens: number of training and of held-out tokens.
    """
    if not share or tokens[1] >= FEW_TOKENS:
        return []
    return [
        f'held out: {tokens[1]:,} of {sum(tokens):,} tokens, so few that a score on them is partly chance; '
        f'raise data.held_out, now {share:g}, or give more text'
    ]
