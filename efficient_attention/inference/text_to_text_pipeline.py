"""Texts to texts in plain Python: `ea.pipeline('translation', path)`."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError
from efficient_attention.inference.items import check_text, for_each
from efficient_attention.inference.search_options import Decoding, decoding_of
from efficient_attention.inference.translator import Translation, translator_of
from efficient_attention.interop.pretrained import Pretrained


class TextToTextPipeline:
    """What an encoder-decoder makes of a text, or of each text of a list.

    Args:
        pretrained: the checkpoint.
        path: of it, for messages.
        prefix: before each text; by default that of the run.
        length: most tokens of a text that is read, see `open_translator`.
        alignments: with the pieces of both sides and the weights of cross-attention, [pieces, source pieces].
        options: fields of `Decoding`; the files of a Hugging Face folder decide the others where they state them.

    Raises:
        InputError: an unknown option, one out of range, or a checkpoint that is no encoder-decoder's.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        path: Path,
        *,
        prefix: str | None = None,
        alignments: bool = False,
        length: int = 0,
        **options: Any,
    ) -> None:
        known = [field.name for field in dataclasses.fields(Decoding)]
        if unknown := sorted(options.keys() - set(known)):
            raise InputError(
                f'unknown options: {", ".join(unknown)}; known: {", ".join(["prefix", "alignments", "length", *known])}'
            )
        decoding = decoding_of(pretrained, path, options)
        self.best, self.alignments = decoding.best, alignments
        self.translator = translator_of(pretrained, path, decoding, prefix, length=length)

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """What is found for a text, a list of as many as `best` where that is above 1; a list of these of a list.

        It is {'text', 'score', 'is_ended'}: whether the model ended it, and not the most tokens that it may have.

        Raises:
            InputError: a text is empty, or there is something else than texts.
        """
        given: list[Any] = list(texts) if isinstance(texts, list | tuple) else [texts]
        for_each(given, check_text)
        before = self.translator.cut_sources
        found = [self.shown(some) for some in self.translator(given, alignments=self.alignments)]
        if cut := self.translator.cut_sources - before:
            most = self.translator.encoder.source.length
            warnings.warn(f'{cut} of {len(given)} texts have more than {most} tokens and were cut', stacklevel=2)
        if line := self.translator.unknown.take():
            warnings.warn(line, stacklevel=2)
        return found[0] if isinstance(texts, str) else found

    def shown(self, found: list[Translation]) -> Any:
        """What was found for one text as plain Python."""
        known = [{'text': one.text, 'score': one.score, 'is_ended': one.is_ended} for one in found]
        rows = [row | self.aligned(one) for row, one in zip(known, found, strict=True)]
        return rows[0] if self.best == 1 else rows

    def aligned(self, one: Translation) -> dict[str, Any]:
        """The pieces of both sides and their alignment, where that was asked for."""
        if one.alignment is None:
            return {}
        pieces = {'pieces': list(one.pieces), 'source_pieces': list(one.source_pieces)}
        return {**pieces, 'alignment': one.alignment.tolist()}
