"""Finds the token ids with which an encoder-decoder was trained to write targets: start, end and forced tokens."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.text_to_text_special_ids import (
    TextToTextSpecialIds,
    find_text_to_text_special_ids,
    with_begin_and_end_tokens,
)
from efficient_attention.interop.config_json_keys import TEXT_TO_TEXT
from efficient_attention.interop.generation_config import (
    ForcedTokens,
    forced_tokens,
    make_generation_config,
    with_trained_token_ids,
)
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.interop.tokenizer_files import check_piece_ids, load_piece_tokenizer

BEGIN = {'bart': '<s>'}  # Hugging Face family of a released model -> the token that begins every text


def trained_token_ids(pretrained: Pretrained, tokenizer: Path) -> TextToTextSpecialIds:
    """Returns the special token ids that an encoder-decoder was trained with; raises InputError if the tokenizer does
    not fit the model.

    `tokenizer` is the tokenizer of sources and targets, or of one of them.
    """
    check_piece_ids(pretrained.family, tokenizer)
    loaded = load_piece_tokenizer(tokenizer, lowercase=pretrained.lowercase)
    run = pretrained.run if pretrained.target_tokenizer in (None, tokenizer) else None
    ids = find_text_to_text_special_ids(loaded, str(tokenizer), start=run.pairs.start if run else '')
    is_target = tokenizer == pretrained.target_tokenizer
    ids.check_fits_vocab_size(pretrained.model.decoder.vocab_size if is_target else pretrained.model.vocab_size)
    return with_trained_token_ids(ids, pretrained.extra, pretrained.generation)


def target_start_piece(pretrained: Pretrained, tokenizer: Tokenizer) -> str:
    """Returns the token that begins every text of an encoder-decoder; '' if there is no such token.

    A run and its export state the piece. A released BART has the piece of its family.
    """
    if pretrained.pairs:
        return pretrained.pairs.get('begin', '')
    begin = BEGIN.get(pretrained.family, '')
    return begin if tokenizer.token_to_id(begin) is not None else ''


def target_forced_tokens(pretrained: Pretrained, tokenizer: Path) -> ForcedTokens:
    """Returns the tokens that generation forces in an encoder-decoder's targets; raises InputError if a file states
    another end token.
    """
    ids = trained_token_ids(pretrained, tokenizer)
    if pretrained.run is None:
        return forced_tokens(ids, pretrained.extra, pretrained.generation)
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    first = (
        loaded.token_to_id(target_start_piece(pretrained, loaded)) if target_start_piece(pretrained, loaded) else None
    )
    return ForcedTokens(-1 if first is None else first)


def pretrained_generation_config(pretrained: Pretrained, tokenizer: Path) -> dict[str, Any]:
    """Returns the content of generation_config.json for a model from a training run; {} for other models."""
    if pretrained.run is None:
        return {}
    return make_generation_config(
        trained_token_ids(pretrained, tokenizer), target_forced_tokens(pretrained, tokenizer).first
    )


def trained_tokenizer_json(pretrained: Pretrained, tokenizer: Path | None) -> str:
    """Returns the text of a tokenizer.json that gives texts the same token ids as in a text-to-text run's training; ''
    without such a run.
    """
    if pretrained.problem != TEXT_TO_TEXT or pretrained.run is None or tokenizer is None:
        return ''
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    end = trained_token_ids(pretrained, tokenizer).end
    return with_begin_and_end_tokens(loaded, begin=pretrained.run.pairs.begin, end=end).to_str(pretty=True)
