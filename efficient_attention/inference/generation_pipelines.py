"""Pipelines that generate text: `pipeline('translation', path)` and `pipeline('text-generation', path)`."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError, is_number, require, require_at_least
from efficient_attention.inference.decoding_options import DecodingOptions, pretrained_decoding_options
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.inference.per_item_errors import check_text, map_items
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.translator import Translation, make_pretrained_translator
from efficient_attention.interop.pretrained import Pretrained


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """Options for generating text with a language model: by sampling with a seed, or by beam search.

    Raises:
        InputError: a value is out of range or not a number, or has no effect with beams.
    """

    max_tokens: int = 200  # number of tokens to generate after the prompt
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    beams: int = 0  # number of beams; 0 = tokens are sampled
    best: int = 1  # number of texts per prompt that a beam search returns

    def __post_init__(self) -> None:
        for name, minimum in (('max_tokens', 1), ('top_k', 0), ('seed', 0), ('beams', 0), ('best', 1)):
            require_at_least(minimum, name, getattr(self, name))
        for name in ('temperature', 'top_p'):
            require(is_number(getattr(self, name)), name, getattr(self, name), 'a number')
        require(self.best <= max(self.beams, 1), 'best', self.best, f'at most beams, which is {self.beams}')
        for name in ('temperature', 'top_k', 'top_p', 'seed'):
            if self.beams and getattr(self, name) != getattr(GenerationOptions, name):
                raise InputError(f'{name} is {getattr(self, name)}; a search with beams samples nothing')

    @property
    def sampling(self) -> Sampling:
        """The temperature, top-k and top-p with which tokens are sampled."""
        return Sampling(self.temperature, self.top_k, self.top_p)


def generation_options(given: Mapping[str, Any]) -> GenerationOptions:
    """Returns the user's generation options, with defaults for missing ones; raises InputError if an option is unknown
    or invalid.
    """
    known = [field.name for field in dataclasses.fields(GenerationOptions)]
    if unknown := sorted(given.keys() - set(known)):
        raise InputError(f'unknown options: {", ".join(unknown)}; known: {", ".join(known)}')
    return GenerationOptions(**given)


def decoding_options(pretrained: Pretrained, path: Path, given: Mapping[str, Any]) -> DecodingOptions:
    """Returns the search options of an encoder-decoder: the user's options, else the settings in the checkpoint's
    files.

    Raises:
        InputError: an option is unknown or out of range.
    """
    known = [field.name for field in dataclasses.fields(DecodingOptions)]
    if unknown := sorted(given.keys() - set(known)):
        raise InputError(
            f'unknown options: {", ".join(unknown)}; known: {", ".join(["prefix", "alignments", "length", *known])}'
        )
    return pretrained_decoding_options(pretrained, path, given)


class TextToTextPipeline:
    """A pipeline that generates target texts, such as translations, with an encoder-decoder.

    Args:
        pretrained: the checkpoint.
        path: the checkpoint's path, for messages.
        decoding: the search options, see `decoding_options`.
        prefix: text put before each source; by default the run's prefix.
        length: maximum number of source tokens that are read, see `open_translator`.
        alignments: also return the pieces of source and target, and the cross-attention weights [pieces, source
            pieces].

    Raises:
        InputError: the checkpoint is not an encoder-decoder.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        path: Path,
        decoding: DecodingOptions,
        *,
        prefix: str | None = None,
        alignments: bool = False,
        length: int = 0,
    ) -> None:
        self.best, self.alignments = decoding.best, alignments
        self.translator = make_pretrained_translator(pretrained, path, decoding, prefix, length=length)

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Returns the generated target of a text, or a list of targets if the option `best` is above 1.

        For a list of texts, returns a list with the result of each text.

        A target is {'text', 'score', 'is_ended'}. 'is_ended' is False if the token limit ended the text.

        Raises:
            InputError: a text is empty, or an entry is not a text.
        """
        given: list[Any] = list(texts) if isinstance(texts, list | tuple) else [texts]
        map_items(given, check_text)
        before = self.translator.cut_sources
        found = [self.to_plain_python(some) for some in self.translator(given, alignments=self.alignments)]
        if cut := self.translator.cut_sources - before:
            most = self.translator.encoder.source.length
            warnings.warn(f'{cut} of {len(given)} texts have more than {most} tokens and were cut', stacklevel=2)
        if line := self.translator.unknown.summarize_and_reset():
            warnings.warn(line, stacklevel=2)
        return found[0] if isinstance(texts, str) else found

    def to_plain_python(self, found: list[Translation]) -> Any:
        """Returns the generated targets of one text as dicts of plain Python values; a single dict if the option `best`
        is 1.
        """
        known = [{'text': one.text, 'score': one.score, 'is_ended': one.is_ended} for one in found]
        rows = [row | self.alignment_to_plain_python(one) for row, one in zip(known, found, strict=True)]
        return rows[0] if self.best == 1 else rows

    def alignment_to_plain_python(self, one: Translation) -> dict[str, Any]:
        """Returns the tokens of source and target and their cross-attention weights as lists; {} if alignments were not
        requested.
        """
        if one.alignment is None:
            return {}
        pieces = {'pieces': list(one.pieces), 'source_pieces': list(one.source_pieces)}
        return {**pieces, 'alignment': one.alignment.tolist()}


class TextGenerationPipeline:
    """A pipeline that continues a prompt, or each prompt of a list, with a language model.

    Args:
        path: a workdir or a Hugging Face folder.
        options: how texts are sampled or searched.
        checkpoint: 'last', 'best' or a step; '' = the best if one is known, else the last.

    Raises:
        InputError: an option of `Sampling` is out of range, or the path holds no language model.
    """

    def __init__(self, path: Path, options: GenerationOptions, *, checkpoint: str = '') -> None:
        self.options, self.sampling = options, options.sampling
        self.generator = TextGenerator(path, checkpoint=checkpoint)

    def __call__(self, prompts: str | list[str]) -> Any:
        """Returns {'text': prompt and continuation}, for beam search also with 'score'; for a list of prompts, returns
        a list.

        A prompt gives the same text by itself and in a list. If `best` is above 1, each prompt has a list of texts.

        Raises:
            InputError: a prompt is not a text, is empty, is too long, or has characters outside the vocabulary.
        """
        found = map_items(prompts if isinstance(prompts, list) else [prompts], self.generate_text)
        return found if isinstance(prompts, list) else found[0]

    def generate_text(self, prompt: str) -> Any:
        """Returns the generated text for one prompt; a list of texts if a beam search keeps several."""
        check_text(prompt)
        options, most = self.options, self.options.max_tokens
        if not options.beams:
            parts = self.generator(prompt, max_tokens=most, sampling=self.sampling, seed=options.seed)
            return {'text': ''.join(parts)}
        found = self.generator.beam_search(prompt, max_tokens=most, beams=options.beams, best=options.best)
        rows = [{'text': one.text, 'score': one.log_prob} for one in found]
        return rows[0] if options.best == 1 else rows
