"""The options of a search from text to text: those that are given, and those that a checkpoint's files state."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.checks import check_within
from efficient_attention.errors import InputError, require
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.search import Rules, Search, ids_in
from efficient_attention.inference.transducer import Batching
from efficient_attention.interop.generation_config import Forced, search_settings
from efficient_attention.interop.pretrained import Pretrained

NOTHING_FORCED = Forced()
RULES = tuple(field.name for field in dataclasses.fields(Rules))
SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
KINDS = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a text'}
# If the user gives the option on the left, the files' values of the options on the right are ignored, too.
TOGETHER = {'penalty': ('alpha',), 'max_tokens': ('extra',), 'ratio': ('extra',)}


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How targets are searched; fields as of `Search`, `Rules`, `Sampling` and `Batching`, and three more.

    Args:
        ends: ids that end a text; () = those of the checkpoint.
        do_sample: tokens are drawn, which needs `beams` 1; only then may fields of `Sampling` and `seed` be set.
        seed: of the draws. A text is drawn from the seed and its place among the texts, whatever stands beside it.

    Raises:
        InputError: a value is out of range, or would have no effect beside the others.
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
            check_kind(field.name, getattr(self, field.name), type(field.default))
        check_within('batch_size', self.batch_size, 1)
        check_within('seed', self.seed, 0, 2**31 - 1)
        if unread := [name for name in (*SAMPLING, 'seed') if not self.do_sample and self.is_changed(name)]:
            raise InputError(f'{unread[0]} is {getattr(self, unread[0])}; it is read only if do_sample is True')
        rules = self.rules()
        for name in RULES:  # lists become tuples, so that equal options are equal
            object.__setattr__(self, name, getattr(rules, name))
        object.__setattr__(self, 'ends', ids_in('ends', self.ends))
        self.search(end=0)
        self.batching()

    def is_changed(self, name: str) -> bool:
        """Whether a field has another value than by default."""
        return bool(getattr(self, name) != getattr(Decoding, name))

    def rules(self) -> Rules:
        """The rules on which tokens may follow."""
        return Rules(**{name: getattr(self, name) for name in RULES})

    def search(self, end: int, forced: Forced = NOTHING_FORCED) -> Search:
        """The search, for a checkpoint's end symbol and the tokens that its files force in every target."""
        own = {field.name for field in dataclasses.fields(self)}
        fields: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(Search) if field.name in own
        }
        known = forced.end_ids or (end,)
        if forced.ends and known[0] not in (self.ends or known):
            raise InputError(f'ends is {list(self.ends)}; the model forces the end {known[0]}: add it to them')
        ends = tuple(sorted(self.ends or known, key=lambda id: id != known[0]))  # the end that may be forced is first
        draws = Sampling(**{name: getattr(self, name) for name in SAMPLING}) if self.do_sample else None
        fields |= {'rules': self.rules(), 'sampling': draws}
        return Search(**fields, end=ends[0], more_ends=ends[1:], first=forced.first, forces_end=forced.ends)

    def batching(self, lengths: tuple[int, ...] = ()) -> Batching:
        """How sources are put into batches, of rows of these lengths where there are some."""
        rows = {'lengths': lengths} if lengths else {}
        return Batching(rows=self.batch_size, ratio=self.ratio, extra=self.extra, **rows)

    def shown(self) -> dict[str, Any]:
        """The options to report beside scores: beams, length penalty, and each other option that was changed."""
        others = ('stop', *RULES, 'ends', 'do_sample', *SAMPLING, 'seed')
        changed = {name: getattr(self, name) for name in others if self.is_changed(name)}
        return {'beams': self.beams, 'length_penalty': f'{self.penalty} {self.alpha:g}'} | changed


def check_kind(name: str, value: Any, kind: type) -> None:
    """Raises InputError where a value is of another type than the default of its field."""
    types = (int, float) if kind is float else kind
    if kind in KINDS:
        require(isinstance(value, types) and (kind is bool) == isinstance(value, bool), name, value, KINDS[kind])


def decoding_of(
    pretrained: Pretrained, path: Path, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Decoding:
    """How targets of a checkpoint are searched: by the options that are given, else by what its files state.

    Says in one line which settings of its files are used, and in another one which are not served.

    Args:
        pretrained: the checkpoint.
        path: of it, for messages.
        given: fields of `Decoding`.
        defaults: others, where neither an option nor a file decides; by default those of `Decoding`.

    Raises:
        InputError: a value is out of range; or a setting of a file is of another type.
    """
    try:
        stated, unserved = search_settings(pretrained.generation, pretrained.extra)
    except InputError as error:
        raise InputError(f'{path}, the settings of its search: {error}') from None
    replaced = {*given, *(other for name in given for other in TOGETHER.get(name, ()))}
    if not given.get('do_sample', True) or given.get('beams', 1) != 1 and 'do_sample' not in given:
        replaced |= {'do_sample', *SAMPLING}
    used = {name: value for name, value in stated.items() if name not in replaced}
    say(path, 'its files state settings of the search, used where no option is given', used)
    say(path, 'settings of a search in its files that are not served', unserved)
    try:
        fields = {**(defaults or {}), **used, **given}
        if fields.get('do_sample') and 'beams' not in given:
            fields['beams'] = 1
        return Decoding(**fields)
    except InputError as error:
        if not used:
            raise
        raise InputError(f'{error} (the files of {path} state {in_words(used)}; options count first)') from None


def say(path: Path, what: str, settings: Mapping[str, Any]) -> None:
    """Says settings in one line, if there are any."""
    if settings:
        logging.getLogger(__name__).warning('%s: %s: %s', path, what, in_words(settings))


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings as a line."""
    return ', '.join(f'{key}={str(value)[:40]}' for key, value in settings.items())
