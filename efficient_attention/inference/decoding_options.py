"""Decides the search options of an encoder-decoder: the user's options, else the settings in the checkpoint's files,
else defaults.
"""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.errors import InputError, require
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.search_settings import SearchSettings, TokenRules, parse_id_list
from efficient_attention.inference.seq2seq_generator import SourceBatching
from efficient_attention.interop.generation_config import ForcedTokens, search_settings
from efficient_attention.interop.pretrained import Pretrained

NOTHING_FORCED = ForcedTokens()
RULES = tuple(field.name for field in dataclasses.fields(TokenRules))
SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
KINDS = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a text'}
# Maps an option to related options. If the user sets the option, the checkpoint's related options are ignored, too.
TOGETHER = {'penalty': ('alpha',), 'max_tokens': ('extra',), 'ratio': ('extra',)}


@dataclasses.dataclass(frozen=True)
class DecodingOptions:
    """Options for generating target texts: beam search, token rules, sampling and batching of the sources.

    The fields besides the ones below are the fields of `SearchSettings`, `TokenRules`, `Sampling` and `SourceBatching`.

    Args:
        ends: ids that end a text; () = the checkpoint's end ids.
        do_sample: sample the tokens, which needs `beams` 1. Fields of `Sampling` and `seed` may be set only with it.
        seed: seed of the sampling. A text depends on the seed and its position in the list, not on its neighbours.

    Raises:
        InputError: a value is out of range, or has no effect with the other values.
    """

    beams: int = 4
    best: int = 1
    penalty: str = 'gnmt'
    alpha: float = 0.6
    max_tokens: int = 256
    min_tokens: int = 0
    ratio: float = 1.0
    extra: int = 50
    batch_size: int = 32
    stop: str = 'exact'
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_option_type(field.name, getattr(self, field.name), type(field.default))
        check_in_interval('batch_size', self.batch_size, 1)
        check_in_interval('seed', self.seed, 0, 2**31 - 1)
        if unread := [name for name in (*SAMPLING, 'seed') if not self.do_sample and self.is_non_default(name)]:
            raise InputError(f'{unread[0]} is {getattr(self, unread[0])}; it is read only if do_sample is True')
        rules = self.token_rules()
        for name in RULES:  # Lists become tuples, so that equal options compare equal.
            object.__setattr__(self, name, getattr(rules, name))
        object.__setattr__(self, 'ends', parse_id_list('ends', self.ends))
        self.search_settings(end=0)
        self.source_batching()

    def is_non_default(self, name: str) -> bool:
        """Returns whether the option of this name has a value other than its default."""
        return bool(getattr(self, name) != getattr(DecodingOptions, name))

    def token_rules(self) -> TokenRules:
        """Returns the rules that restrict which token may come next, such as `no_repeat_ngram_size`."""
        return TokenRules(**{name: getattr(self, name) for name in RULES})

    def search_settings(self, end: int, forced: ForcedTokens = NOTHING_FORCED) -> SearchSettings:
        """Returns the search settings for a checkpoint, from these options, the checkpoint's end symbol and its forced
        tokens.
        """
        own = {field.name for field in dataclasses.fields(self)}
        fields: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(SearchSettings) if field.name in own
        }
        known = forced.end_ids or (end,)
        if forced.ends and known[0] not in (self.ends or known):
            raise InputError(f'ends is {list(self.ends)}; the model forces the end {known[0]}; add it to ends')
        # The search can force only the end id that is listed first, so the model's end id moves to the front.
        ends = tuple(sorted(self.ends or known, key=lambda id: id != known[0]))
        draws = Sampling(**{name: getattr(self, name) for name in SAMPLING}) if self.do_sample else None
        fields |= {'rules': self.token_rules(), 'sampling': draws}
        return SearchSettings(**fields, end=ends[0], more_ends=ends[1:], first=forced.first, forces_end=forced.ends)

    def source_batching(self, lengths: tuple[int, ...] = ()) -> SourceBatching:
        """Returns the settings for batching source texts; `lengths` are the padded row lengths, () = the default
        lengths.
        """
        rows = {'lengths': lengths} if lengths else {}
        return SourceBatching(rows=self.batch_size, ratio=self.ratio, extra=self.extra, **rows)

    def reported_options(self) -> dict[str, Any]:
        """Returns the options that are reported with scores: number of beams, length penalty, and all other options
        that are not defaults.
        """
        others = ('stop', *RULES, 'ends', 'do_sample', *SAMPLING, 'seed')
        changed = {name: getattr(self, name) for name in others if self.is_non_default(name)}
        return {'beams': self.beams, 'length_penalty': f'{self.penalty} {self.alpha:g}'} | changed


def check_option_type(name: str, value: Any, kind: type) -> None:
    """Raises InputError if the value of an option does not have the given type."""
    types = (int, float) if kind is float else kind
    if kind in KINDS:
        require(isinstance(value, types) and (kind is bool) == isinstance(value, bool), name, value, KINDS[kind])


def pretrained_decoding_options(
    pretrained: Pretrained, path: Path, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> DecodingOptions:
    """Returns the search options for a checkpoint: the user's options, else the settings in the checkpoint's files,
    else defaults.

    Logs one line with the file settings in use, and one line with the file settings that are not supported.

    Args:
        pretrained: the checkpoint.
        path: the checkpoint's path, for messages.
        given: the user's options, fields of `DecodingOptions`.
        defaults: replace the defaults of `DecodingOptions`, where neither an option nor a file decides.

    Raises:
        InputError: a value is out of range, or a setting in a file has the wrong type.
    """
    try:
        stated, unserved = search_settings(pretrained.generation, pretrained.extra)
    except InputError as error:
        raise InputError(f'{path}, the settings of its search: {error}') from None
    replaced = {*given, *(other for name in given for other in TOGETHER.get(name, ()))}
    if not given.get('do_sample', True) or given.get('beams', 1) != 1 and 'do_sample' not in given:
        replaced |= {'do_sample', *SAMPLING}
    used = {name: value for name, value in stated.items() if name not in replaced}
    log_settings(path, 'search settings in its files, used where no option is given', used)
    log_settings(path, 'search settings in its files that are not supported', unserved)
    try:
        fields = {**(defaults or {}), **used, **given}
        if fields.get('do_sample') and 'beams' not in given:
            fields['beams'] = 1
        return DecodingOptions(**fields)
    except InputError as error:
        if not used:
            raise
        raise InputError(f'{error} (the files of {path} state {format_settings(used)}; options count first)') from None


def log_settings(path: Path, what: str, settings: Mapping[str, Any]) -> None:
    """Logs the given settings in one line; if there are no settings, logs nothing."""
    if settings:
        logging.getLogger(__name__).warning('%s: %s: %s', path, what, format_settings(settings))


def format_settings(settings: Mapping[str, Any]) -> str:
    """Returns settings as 'key=value, key=value', with values cut to 40 characters."""
    return ', '.join(f'{key}={str(value)[:40]}' for key, value in settings.items())
