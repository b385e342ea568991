"""Reads and writes text-generation settings of a checkpoint: start, end and forced token ids, and beam-search
settings.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from efficient_attention.data.tokenizers.added_tokens import read_json_object
from efficient_attention.data.tokenizers.text_to_text_special_ids import TextToTextSpecialIds
from efficient_attention.errors import InputError

GENERATION = 'generation_config.json'
KEYS = {'pad': 'pad_token_id', 'start': 'decoder_start_token_id', 'end': 'eos_token_id'}

FORCED_FIRST, FORCED_END = 'forced_bos_token_id', 'forced_eos_token_id'
UNSAID = ('bos_token_id', FORCED_END)
# These keys of generation_config.json are read, or have no effect on the generated tokens.
READ = {*KEYS.values(), 'bos_token_id', FORCED_FIRST, FORCED_END}
READ |= {'_from_model_config', 'transformers_version', 'use_cache', 'cache_implementation', 'return_dict_in_generate'}
READ |= {'output_attentions', 'output_hidden_states', 'output_scores', 'output_logits'}
TASKS = 'task_specific_params'

# The next tables map text-generation settings of transformers to fields of `DecodingOptions`.
# maps a value of the setting `early_stopping` in transformers to a value of the field `stop`
STOPS = {True: 'first', False: 'early', 'never': 'exact'}
WHOLE, NUMBER = 'a whole number', 'a number'
# Name of a setting in transformers -> (field of `DecodingOptions`, what kind of value it must have).
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
# With these values a setting has no effect; NEUTRAL lists more such values for some settings.
NOTHING: tuple[Any, ...] = (None, False, 0, [])
NEUTRAL = {'num_return_sequences': 1, 'num_beam_groups': 1, 'typical_p': 1, 'guidance_scale': 1}
NEUTRAL |= {'encoder_repetition_penalty': 1}
# Files of older models state these unsupported settings in config.json instead of generation_config.json.
OLDER = {'encoder_no_repeat_ngram_size', 'diversity_penalty', 'exponential_decay_length_penalty', 'typical_p'}
OLDER |= {'num_beam_groups', 'num_return_sequences', 'renormalize_logits', 'remove_invalid_values'}
OLD_MOST = 20  # the default of transformers for `max_length`
# These are the defaults of transformers for a file that states only the number of beams.
BEAM_DEFAULTS = {'penalty': 'length', 'alpha': 1.0, 'stop': 'early'}
DEFAULT_TOP_K = 50  # the default of transformers for `top_k` in sampling


class ForcedTokens(NamedTuple):
    """Tokens that generation forces in every target text: the first token, and the end token at the token limit.

    `first` is -1 if any token may come first. `end_ids` are all ids that end a target; only the first of them may be
    forced. () = a target ends only with the id that ends a source.
    """

    first: int = -1
    ends: bool = False
    end_ids: tuple[int, ...] = ()


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Returns the content of a folder's generation_config.json; {} if there is no such file."""
    return read_json_object(folder / GENERATION)


def task_prefixes(extra: Mapping[str, Any]) -> dict[str, str]:
    """Returns {task: text prefix} from a released model's config.json, such as T5's 'summarize: '."""
    tasks = extra.get(TASKS)
    if not isinstance(tasks, dict):
        return {}
    prefixes = {name: values.get('prefix') for name, values in tasks.items() if isinstance(values, dict)}
    return {name: prefix for name, prefix in prefixes.items() if isinstance(prefix, str)}


def task_settings(extra: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Returns the generation settings that a released model's config.json states for one task, without the text prefix.
    transformers 5 ignores these settings.
    """
    tasks = extra.get(TASKS)
    settings = tasks.get(task) if isinstance(tasks, dict) else None
    return {key: value for key, value in settings.items() if key != 'prefix'} if isinstance(settings, dict) else {}


def with_trained_token_ids(
    ids: TextToTextSpecialIds, extra: Mapping[str, Any], generation: Mapping[str, Any]
) -> TextToTextSpecialIds:
    """Returns the tokenizer's special token ids, replaced by the ids that the checkpoint's files state.

    Args:
        ids: the tokenizer's ids.
        extra: the keys of its config.json.
        generation: the keys of its generation_config.json, which take precedence.

    Raises:
        InputError: a stated id is not an id of the tokenizer.
    """
    found: dict[str, Any] = {}
    for field, key in KEYS.items():
        value = next((one[key] for one in (generation, extra) if one.get(key) is not None), None)
        if value is None:
            continue
        if field == 'end' and isinstance(value, list) and value:
            check_end_ids(ids, value)
            # A source ends with the tokenizer's end id, so that id is preferred.
            value = ids.end if ids.end in value else value[0]
        if type(value) is not int or not 0 <= value < ids.size:
            raise InputError(
                f'{key} is {value!r}; it must be one of the ids that the tokenizer has, 0 to {ids.size - 1}'
            )
        found[field] = value
    return dataclasses.replace(ids, **found)


def check_end_ids(ids: TextToTextSpecialIds, values: list[Any]) -> None:
    """Raises InputError if one of several end-of-text ids does not exist in the tokenizer."""
    for value in values:
        if type(value) is not int or not 0 <= value < ids.size:
            raise InputError(
                f'{KEYS["end"]} has {value!r}; each must be one of the ids that the tokenizer has, 0 to {ids.size - 1}'
            )


def end_ids(ids: TextToTextSpecialIds, extra: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns all token ids that end a target if the checkpoint's files state several; otherwise ().

    Arguments are as in `with_trained_token_ids`.
    """
    value = next((one[KEYS['end']] for one in (generation, extra) if one.get(KEYS['end']) is not None), None)
    if not isinstance(value, list) or len(value) < 2:
        return ()
    check_end_ids(ids, value)
    return tuple(dict.fromkeys(value))


def forced_tokens(ids: TextToTextSpecialIds, extra: Mapping[str, Any], generation: Mapping[str, Any]) -> ForcedTokens:
    """Returns the token ids that a checkpoint's files force at the beginning and end of generated targets.

    Args:
        ids: the ids it was trained with, see `with_trained_token_ids`.
        extra: the keys of its config.json, used only if there is no generation_config.json, as in transformers.
        generation: the keys of its generation_config.json.

    Raises:
        InputError: the first token is not an id of the tokenizer, or the last is not the end.
    """
    values = generation or extra
    first, end = values.get(FORCED_FIRST), values.get(FORCED_END)
    if first is not None and (type(first) is not int or not 0 <= first < ids.size):
        raise InputError(f'{FORCED_FIRST} is {first!r}; the tokenizer has the ids 0 to {ids.size - 1}')
    ends = end_ids(ids, extra, generation)
    end = end[0] if isinstance(end, list) and len(end) == 1 else end
    if end is not None and end not in (ends or (ids.end,)):
        allowed = ' or '.join(map(str, ends or (ids.end,)))
        raise InputError(f'{FORCED_END} is {end!r}; it must be {allowed}, the id of the end, or null')
    if end is not None and ends:
        ends = (end, *(id for id in ends if id != end))
    return ForcedTokens(-1 if first is None else first, end is not None, ends)


def make_generation_config(ids: TextToTextSpecialIds, first: int) -> dict[str, Any]:
    """Returns the content of a generation_config.json with these token ids. Every target begins with the token id
    `first`, or with any token if `first` is -1.
    """
    values = {key: getattr(ids, field) for field, key in KEYS.items()}
    return values | ({FORCED_FIRST: first} if first >= 0 else {})


def with_token_ids(values: Mapping[str, Any], ids: TextToTextSpecialIds) -> dict[str, Any]:
    """Returns the content of a config.json with its special token ids replaced by these ids.

    Keys of `UNSAID` without a value become null, because transformers has defaults for missing keys.
    """
    return dict.fromkeys(UNSAID) | dict(values) | {key: getattr(ids, field) for field, key in KEYS.items()}


class StatedSearchSettings(NamedTuple):
    """The text-generation settings that a checkpoint's files state: supported settings as fields of `DecodingOptions`,
    and unsupported settings.
    """

    options: dict[str, Any]
    unserved: dict[str, Any]


def search_settings(generation: Mapping[str, Any], extra: Mapping[str, Any]) -> StatedSearchSettings:
    """Returns the beam-search and sampling settings that a checkpoint's files state.

    Args:
        generation: the keys of its generation_config.json.
        extra: the keys of its config.json, used only if there is no generation_config.json, as in transformers.

    Raises:
        InputError: a value has another type than its setting.
    """
    values = generation or {key: value for key, value in extra.items() if key in SERVED | OLDER}
    stated = {key: value for key, value in values.items() if value is not None and key not in READ}
    options = {own: check_setting_type(key, stated[key], kind) for key, (own, kind) in SAME.items() if key in stated}
    if options.get('beams', 1) > 1:
        options = BEAM_DEFAULTS | options
    if 'alpha' in options:
        options['penalty'] = 'length'
    if 'early_stopping' in stated:
        stop = stated['early_stopping']
        if not isinstance(stop, bool | str) or stop not in STOPS:
            raise InputError(f'early_stopping is {stop!r}; it must be true, false or "never"')
        options['stop'] = STOPS[stop]
    # Older models state a `max_length` of 20 in every config.json, although nobody chose this value.
    unset: set[str] = set() if generation or stated.get('max_length') != OLD_MOST else {'max_length'}
    options |= length_limits({key: value for key, value in stated.items() if key not in unset}) | sampling(stated)
    draws = stated.get('do_sample') is True
    others = {key: value for key, value in stated.items() if key not in SERVED and value not in NOTHING}
    unserved = {
        key: value
        for key, value in others.items()
        if NEUTRAL.get(key) != value and (draws or key not in UNSERVED_SAMPLING)
    }
    if draws and 'do_sample' not in options:
        unserved['do_sample'] = True
    return StatedSearchSettings(options, unserved)


def length_limits(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the maximum and minimum number of tokens to generate. `DecodingOptions` does not count the start symbol;
    `max_length` and `min_length` of transformers do.
    """
    whole = {key: check_setting_type(key, stated[key], WHOLE) for key in LENGTHS if key in stated}
    most, found = whole.get('max_new_tokens'), dict[str, Any]()
    if most is None and 'max_length' in whole:
        most = whole['max_length'] - 1
    if most is not None:
        # `extra` gets the same value as `max_tokens`, so that the limit does not depend on the source's length.
        found |= {'max_tokens': most, 'extra': most}
    if {'min_length', 'min_new_tokens'} & whole.keys():
        found['min_tokens'] = max(0, whole.get('min_length', 0) - 1, whole.get('min_new_tokens', 0))
    return found


def sampling(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sampling settings that a checkpoint's files state; {} if they state no sampling, or sampling with
    beams, which is not supported.
    """
    draws = stated.get('do_sample', False)
    if not isinstance(draws, bool):
        raise InputError(f'do_sample is {draws!r}; it must be true or false')
    if not draws or stated.get('num_beams', 1) != 1:
        return {}
    found = {key: check_setting_type(key, stated[key], kind) for key, kind in SAMPLING.items() if key in stated}
    return {'do_sample': True, 'top_k': DEFAULT_TOP_K} | found


def check_setting_type(key: str, value: Any, kind: str) -> Any:
    """Returns the value of a generation setting; raises InputError if its type is wrong."""
    types: tuple[type, ...] = {WHOLE: (int,), NUMBER: (int, float)}.get(kind, (list,))
    if isinstance(value, bool) or not isinstance(value, types):
        raise InputError(f'{key} is {value!r}; it must be {kind}')
    return value
