"""Pipelines that write text: `ea.pipeline('translation', path)` and `ea.pipeline('text-generation', workdir)`."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError, is_number, require, require_at_least
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.inference.items import check_text, for_each
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.search_options import Decoding, decoding_of
from efficient_attention.inference.translator import Translation, translator_of
from efficient_attention.interop.config_in import read_values
from efficient_attention.interop.pretrained import Pretrained

DEFAULTS = {'max_tokens': 200, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'seed': 0, 'beams': 0, 'best': 1}
SAMPLING = ('temperature', 'top_k', 'top_p')


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


class TextGenerationPipeline:
    """The text that a language model writes after a prompt, or after each prompt of a list.

    Args:
        path: a workdir.
        checkpoint: 'last', 'best' or a step; '' = the best where one is known, else the last.
        options: `max_tokens` to add, 200 by default; the fields of `Sampling` and a `seed`, by which tokens are drawn;
            or `beams`, which searches the most probable texts, and how many of them are the `best`.

    Raises:
        InputError: an option is unknown or out of range, draws beside a search, or the path holds no language model.
    """

    def __init__(self, path: Path, *, checkpoint: str = '', **options: Any) -> None:
        self.options = checked_options(options)
        self.sampling = Sampling(**{name: self.options[name] for name in SAMPLING})
        if 'task' not in read_values(path):
            raise InputError(f'{path} is no workdir; text-generation needs a language model that train.py trained')
        self.generator = TextGenerator(path, checkpoint=checkpoint)

    def __call__(self, prompts: str | list[str]) -> Any:
        """{'text': the prompt and what follows it}, with its 'score' from a search; a list of these for a list.

        A prompt gives the same text alone and in a list. Where `best` is above 1, each prompt has a list of texts.

        Raises:
            InputError: a prompt is no text, is empty, has what the vocabulary lacks, or leaves no room for the tokens.
        """
        found = for_each(prompts if isinstance(prompts, list) else [prompts], self.written)
        return found if isinstance(prompts, list) else found[0]

    def written(self, prompt: str) -> Any:
        """The text, or the texts of a search, for one prompt."""
        check_text(prompt)
        most, best, beams = (self.options[name] for name in ('max_tokens', 'best', 'beams'))
        if not beams:
            parts = self.generator(prompt, max_tokens=most, sampling=self.sampling, seed=self.options['seed'])
            return {'text': ''.join(parts)}
        found = self.generator.best(prompt, max_tokens=most, beams=beams, best=best)
        rows = [{'text': one.text, 'score': one.log_prob} for one in found]
        return rows[0] if best == 1 else rows


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """All options with their values; raises InputError for one that is unknown, no number, or without effect."""
    if unknown := sorted(options.keys() - set(DEFAULTS)):
        raise InputError(f'unknown options: {", ".join(unknown)}; known: {", ".join(DEFAULTS)}')
    all_options = DEFAULTS | options
    for name, minimum in (('max_tokens', 1), ('top_k', 0), ('seed', 0), ('beams', 0), ('best', 1)):
        require_at_least(minimum, name, all_options[name])
    for name in ('temperature', 'top_p'):
        require(is_number(all_options[name]), name, all_options[name], 'a number')
    beams = all_options['beams']
    require(all_options['best'] <= max(beams, 1), 'best', all_options['best'], f'at most beams, which is {beams}')
    for name in (*SAMPLING, 'seed'):
        if beams and all_options[name] != DEFAULTS[name]:
            raise InputError(f'{name} is {all_options[name]}; a search with beams draws nothing')
    return all_options
