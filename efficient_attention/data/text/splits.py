"""Splits a text, or a set of images, into train, held-out and test, either by whole documents or by position."""

from collections.abc import Callable, Iterator

from efficient_attention.config.data import DataConfig
from efficient_attention.data.preparation.held_out_documents import (
    SingleDocumentError,
    document_hash,
    held_out_threshold,
)
from efficient_attention.data.sources.text_source import TextSource
from efficient_attention.data.text.text_units import Text
from efficient_attention.errors import InputError

SPLITS = ('train', 'held_out', 'test')
# A function of this type yields (split, text) in source order; the text is a document, or its part in this split.
SplitTexts = Callable[[], Iterator[tuple[str, Text]]]


def split_text(source: TextSource[str] | TextSource[bytes], config: DataConfig) -> SplitTexts:
    """Returns a function that reads the source and yields each text with the name of its split; every call yields the
    same.

    Args:
        source: read once now, and again at each call of the result.
        config: `units`, `splitting`, `held_out` and `test` are read.

    Raises:
        InputError: there is no text; or there is only one document, with splitting 'documents'.
    """
    split = {'documents': _split_by_document, 'end': _split_at_the_end}[config.splitting]
    try:
        return split(source, config)
    except InputError as error:
        raise InputError(f'data.source {source.text!r}: {error}') from None


def _split_by_document(source: TextSource[str] | TextSource[bytes], config: DataConfig) -> SplitTexts:
    documents: Callable[[], Iterator[Text]] = source.documents
    hashes = [document_hash(text) for text in documents()]
    if not hashes:
        raise InputError('no text in it')
    try:
        threshold = held_out_threshold(hashes, config.held_out)
    except SingleDocumentError as error:
        ways = (
            '--config.data.splitting=end to hold out its end, or --config.data.held_out=0 to train without evaluation'
        )
        raise InputError(f'{error}; use {ways}') from None

    def split_texts() -> Iterator[tuple[str, Text]]:
        for text, number in zip(documents(), hashes, strict=True):
            yield 'held_out' if number < threshold else 'train', _countable_text(text, config)

    return split_texts


def _split_at_the_end(source: TextSource[str] | TextSource[bytes], config: DataConfig) -> SplitTexts:
    documents: Callable[[], Iterator[Text]] = source.documents
    total = sum(len(_countable_text(text, config)) for text in documents())
    if not total:
        raise InputError('no text in it')
    ends = (round(total * (1 - config.held_out - config.test)), round(total * (1 - config.test)), total)
    ranges = list(zip(SPLITS, (0, *ends[:-1]), ends, strict=True))

    def split_texts() -> Iterator[tuple[str, Text]]:
        start = 0
        for document in documents():
            text = _countable_text(document, config)
            for split, low, high in ranges:
                if belonging := text[
                    _cut_position(text, low - start, config) : _cut_position(text, high - start, config)
                ]:
                    yield split, belonging
            start += len(text)

    return split_texts


def _countable_text(text: Text, config: DataConfig) -> Text:
    """Returns the text in the unit in which its length is measured: bytes if the units are bytes, otherwise
    characters."""
    return text.encode() if config.units == 'bytes' and isinstance(text, str) else text


def _cut_position(text: Text, place: int, config: DataConfig) -> int:
    """Returns the position at which to cut a document, near `place`: images are not cut, and words are cut only at a
    line end.

    Texts of words are cut at a line end. Images are not cut: the result is the end of the image that is nearer.
    """
    place = min(max(place, 0), len(text))
    if config.units == 'pixels':
        return len(text) if 2 * place >= len(text) else 0
    if config.units == 'words' and isinstance(text, str) and 0 < place < len(text):
        return text.find('\n', place - 1) + 1 or len(text)
    return place
