"""Token ids of an encoder-decoder's targets: the start, end and forced tokens that it was trained with."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.text_to_text import TextToTextIds, text_to_text_ids, with_ends
from efficient_attention.interop.config_fields import TEXT_TO_TEXT
from efficient_attention.interop.generation_config import Forced, forced_tokens, generation_of_run, ids_as_trained
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.interop.tokenizer_files import check_numbered, vocabulary_of_pieces

BEGIN = {'bart': '<s>'}  # first piece of every text, by family of released models


def trained_ids(pretrained: Pretrained, tokenizer: Path) -> TextToTextIds:
    """Returns the ids that an encoder-decoder was trained with; raises InputError if the tokenizer does not fit.

    `tokenizer` is the tokenizer of both sides, or one of two.
    """
    check_numbered(pretrained.family, tokenizer)
    loaded = vocabulary_of_pieces(tokenizer, lowercase=pretrained.lowercase)
    run = pretrained.run if pretrained.target_tokenizer in (None, tokenizer) else None
    ids = text_to_text_ids(loaded, str(tokenizer), start=run.pairs.start if run else '')
    is_target = tokenizer == pretrained.target_tokenizer
    ids.check_within(pretrained.model.decoder.vocab_size if is_target else pretrained.model.vocab_size)
    return ids_as_trained(ids, pretrained.extra, pretrained.generation)


def begin_of(pretrained: Pretrained, tokenizer: Tokenizer) -> str:
    """Returns the piece that begins every text of an encoder-decoder; '' = none.

    A run and its export state the piece. A released BART has the piece of its family.
    """
    if pretrained.pairs:
        return pretrained.pairs.get('begin', '')
    begin = BEGIN.get(pretrained.family, '')
    return begin if tokenizer.token_to_id(begin) is not None else ''


def forced_of(pretrained: Pretrained, tokenizer: Path) -> Forced:
    """Returns the forced tokens of an encoder-decoder's targets; raises InputError if a file states another end."""
    ids = trained_ids(pretrained, tokenizer)
    if pretrained.run is None:
        return forced_tokens(ids, pretrained.extra, pretrained.generation)
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    first = loaded.token_to_id(begin_of(pretrained, loaded)) if begin_of(pretrained, loaded) else None
    return Forced(-1 if first is None else first)


def generation_of(pretrained: Pretrained, tokenizer: Path) -> dict[str, Any]:
    """Returns the keys of a run's generation_config.json; {} without a run."""
    if pretrained.run is None:
        return {}
    return generation_of_run(trained_ids(pretrained, tokenizer), forced_of(pretrained, tokenizer).first)


def as_trained(pretrained: Pretrained, tokenizer: Path | None) -> str:
    """Returns a tokenizer.json that gives texts the ids of a text-to-text run's training; '' without such a run."""
    if pretrained.problem != TEXT_TO_TEXT or pretrained.run is None or tokenizer is None:
        return ''
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    end = trained_ids(pretrained, tokenizer).end
    return with_ends(loaded, begin=pretrained.run.pairs.begin, end=end).to_str(pretty=True)
