"""Holds documents out for evaluation: those whose text hashes below a threshold, whatever their order."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from efficient_attention.errors import InputError

HASHES = 2**64
FEW_TOKENS = 10_000  # if the loss of a token deviates by 3 bits, the mean of so many deviates by 0.03
FAR_OFF = 2.0  # times the share that was asked for: beyond it a run says what it got


class OneDocument(InputError):
    """There is one document where two are needed to split them; the caller that catches it adds what a user can do."""


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
        OneDocument: 0 < share < 1 and the documents are one text.
    """
    threshold = int(share * HASHES)
    if share in (0, 1):
        return threshold
    lowest, highest = min(hashes), max(hashes)
    if lowest == highest:
        raise OneDocument('it is one document, so none is left to hold out')
    return min(max(threshold, lowest + 1), highest)


def more_documents(source: str) -> str:
    """What gives a user more documents than `data.source` has, to stand in a list of ways to go on."""
    is_whole_files = source.startswith('text:') and '#' not in source
    return f"data.source='{source}#paragraphs' (blank lines separate documents)" if is_whole_files else 'more documents'


def split_counts(manifest: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Documents and tokens, each to train on and held out, from the manifest of a prepared corpus or text."""
    train, held_out = manifest['counts']['train'], manifest['counts']['held_out']
    return (train['documents'], held_out['documents']), (train['tokens'], held_out['tokens'])


def held_out_share_note(share: float, documents: tuple[int, int], tokens: tuple[int, int]) -> list[str]:
    """A line where the held-out share of the tokens is far from `share`, which is one of documents; else none.

    Args:
        share: `data.held_out`.
        documents: to train on, held out.
        tokens: likewise.
    """
    found = tokens[1] / max(sum(tokens), 1)
    if not share or share / FAR_OFF <= found <= share * FAR_OFF:
        return []
    return [
        f'held out: {documents[1]:,} of {sum(documents):,} documents with {found:.1%} of the tokens; '
        f'data.held_out={share:g} is a share of documents, and these are few or of very different lengths'
    ]


def few_held_out_note(share: float, tokens: tuple[int, int]) -> list[str]:
    """A line if so few tokens are held out that a score on them is partly chance; else none.

    Args:
        share: `data.held_out`.
        tokens: the number of tokens to train on, and of tokens held out.
    """
    if not share or tokens[1] >= FEW_TOKENS:
        return []
    return [
        f'held out: {tokens[1]:,} of {sum(tokens):,} tokens, so few that a score on them is partly chance; '
        f'raise data.held_out, now {share:g}, or give more text'
    ]
