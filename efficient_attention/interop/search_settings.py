"""Settings of a search in a checkpoint's files, by transformers' names, as fields of `Decoding`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from efficient_attention.errors import InputError
from efficient_attention.interop.generation_config import READ

STOPS = {True: 'first', False: 'early', 'never': 'exact'}  # of `early_stopping`
WHOLE, NUMBER = 'a whole number', 'a number'
# transformers' name -> (ours, what its value must be).
SAME = {
    'num_beams': ('beams', WHOLE),
    'length_penalty': ('alpha', NUMBER),
    'no_repeat_ngram_size': ('no_repeat_ngram_size', WHOLE),
    'repetition_penalty': ('repetition_penalty', NUMBER),
    'bad_words_ids': ('bad_words_ids', 'a list of lists of ids'),
    'suppress_tokens': ('suppress_tokens', 'a list of ids'),
    'begin_suppress_tokens': ('begin_suppress_tokens', 'a list of ids'),
}
LENGTHS = ('max_length', 'max_new_tokens', 'min_length', 'min_new_tokens')
SAMPLING = {'temperature': NUMBER, 'top_k': WHOLE, 'top_p': NUMBER}
UNSERVED_SAMPLING = ('min_p', 'top_h', 'typical_p', 'epsilon_cutoff', 'eta_cutoff')
SERVED = {*SAME, *LENGTHS, *SAMPLING, 'early_stopping', 'do_sample'}
NOTHING: tuple[Any, ...] = (None, False, 0, [])  # values at which settings have no effect; NEUTRAL adds some
NEUTRAL = {'num_return_sequences': 1, 'num_beam_groups': 1, 'typical_p': 1, 'guidance_scale': 1}
NEUTRAL |= {'encoder_repetition_penalty': 1}
# What older models have in config.json and this project does not serve.
OLDER = {'encoder_no_repeat_ngram_size', 'diversity_penalty', 'exponential_decay_length_penalty', 'typical_p'}
OLDER |= {'num_beam_groups', 'num_return_sequences', 'renormalize_logits', 'remove_invalid_values'}
OLD_MOST = 20  # the default `max_length` of transformers
BEAM_DEFAULTS = {'penalty': 'length', 'alpha': 1.0, 'stop': 'early'}  # of transformers, where a file states only beams
DEFAULT_TOP_K = 50  # of transformers, where tokens are drawn


class Settings(NamedTuple):
    """What a checkpoint's files state: fields of `Decoding`, and settings of a search that are not supported."""

    options: dict[str, Any]
    unserved: dict[str, Any]


def search_settings(generation: Mapping[str, Any], extra: Mapping[str, Any]) -> Settings:
    """The settings of a search that a checkpoint's files state.

    Args:
        generation: the keys of its generation_config.json.
        extra: those of its config.json, which count where there is no such file, as in transformers.

    Raises:
        InputError: a value is of another type than the setting.
    """
    values = generation or {key: value for key, value in extra.items() if key in SERVED | OLDER}
    stated = {key: value for key, value in values.items() if value is not None and key not in READ}
    options = {own: checked(key, stated[key], kind) for key, (own, kind) in SAME.items() if key in stated}
    if options.get('beams', 1) > 1:
        options = BEAM_DEFAULTS | options
    if 'alpha' in options:
        options['penalty'] = 'length'
    if 'early_stopping' in stated:
        stop = stated['early_stopping']
        if not isinstance(stop, bool | str) or stop not in STOPS:
            raise InputError(f'early_stopping is {stop!r}; it must be true, false or "never"')
        options['stop'] = STOPS[stop]
    # Every config.json of older models states a `max_length` of 20, which nobody chose.
    unset: set[str] = set() if generation or stated.get('max_length') != OLD_MOST else {'max_length'}
    options |= lengths({key: value for key, value in stated.items() if key not in unset}) | sampling(stated)
    draws = stated.get('do_sample') is True
    others = {key: value for key, value in stated.items() if key not in SERVED and value not in NOTHING}
    unserved = {
        key: value
        for key, value in others.items()
        if NEUTRAL.get(key) != value and (draws or key not in UNSERVED_SAMPLING)
    }
    if draws and 'do_sample' not in options:
        unserved['do_sample'] = True
    return Settings(options, unserved)


def lengths(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The most and the fewest tokens. `max_length` and `min_length` count the start symbol, and ours do not."""
    whole = {key: checked(key, stated[key], WHOLE) for key in LENGTHS if key in stated}
    most, found = whole.get('max_new_tokens'), dict[str, Any]()
    if most is None and 'max_length' in whole:
        most = whole['max_length'] - 1
    if most is not None:
        found |= {'max_tokens': most, 'extra': most}  # whatever the source's length is
    if {'min_length', 'min_new_tokens'} & whole.keys():
        found['min_tokens'] = max(0, whole.get('min_length', 0) - 1, whole.get('min_new_tokens', 0))
    return found


def sampling(stated: Mapping[str, Any]) -> dict[str, Any]:
    """How tokens are drawn, where they are; with beams that is not served."""
    draws = stated.get('do_sample', False)
    if not isinstance(draws, bool):
        raise InputError(f'do_sample is {draws!r}; it must be true or false')
    if not draws or stated.get('num_beams', 1) != 1:
        return {}
    found = {key: checked(key, stated[key], kind) for key, kind in SAMPLING.items() if key in stated}
    return {'do_sample': True, 'top_k': DEFAULT_TOP_K} | found


def checked(key: str, value: Any, kind: str) -> Any:
    """The value; raises InputError where it is of another type."""
    types: tuple[type, ...] = {WHOLE: (int,), NUMBER: (int, float)}.get(kind, (list,))
    if isinstance(value, bool) or not isinstance(value, types):
        raise InputError(f'{key} is {value!r}; it must be {kind}')
    return value
