"""What a checkpoint's files say of generating text: generation_config.json, and the ids of its targets' ends."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from efficient_attention.config.json_text import read_json_file
from efficient_attention.data.tokenizers.text_to_text import TextToTextIds
from efficient_attention.errors import InputError

GENERATION = 'generation_config.json'
KEYS = {'pad': 'pad_token_id', 'start': 'decoder_start_token_id', 'end': 'eos_token_id'}

# Settings of a search that older models have in config.json -> values with which they change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    'num_beams': (None, 1),
    'length_penalty': (None, 1.0),
    'early_stopping': (None, False),
    'max_length': (None, 20),  # transformers' default, which nobody chose
    'max_new_tokens': (None,),
    'min_length': (None, 0),
    'no_repeat_ngram_size': (None, 0),
    'repetition_penalty': (None, 1.0),
    'bad_words_ids': (None,),
    'do_sample': (None, False),
}
FORCED_FIRST, FORCED_END = 'forced_bos_token_id', 'forced_eos_token_id'
UNSAID = ('bos_token_id', FORCED_END)
# Keys of generation_config.json that are read, or that change no token.
READ = {*KEYS.values(), 'bos_token_id', FORCED_FIRST, FORCED_END}
READ |= {'_from_model_config', 'transformers_version', 'use_cache', 'cache_implementation', 'return_dict_in_generate'}
READ |= {'output_attentions', 'output_hidden_states', 'output_scores', 'output_logits'}
NOTHING = (None, False, 0)  # of a setting that `NEUTRAL` does not have
TASKS = 'task_specific_params'


class Forced(NamedTuple):
    """Tokens that every target has, as if their probability were 1: the first one, and the end at the most tokens.

    `first` is -1 where any may come first.
    """

    first: int = -1
    ends: bool = False


def generation_values(folder: Path) -> dict[str, Any]:
    """The keys of generation_config.json; empty where there is none."""
    path = folder / GENERATION
    if not path.is_file():
        return {}
    try:
        values = read_json_file(path)
    except ValueError as error:
        raise InputError(f'{path}: not JSON ({error})') from None
    if not isinstance(values, dict):
        raise InputError(f'{path}: no JSON object')
    return values


def unused_settings(generation: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a search that a checkpoint's files hold and that may change what transformers finds.

    Args:
        generation: the keys of its generation_config.json, which count first.
        extra: those of its config.json, where older models have them.
    """
    older = {key: extra[key] for key in NEUTRAL if key in extra}
    values = older | {key: value for key, value in generation.items() if key not in READ}
    return {key: value for key, value in values.items() if value not in NEUTRAL.get(key, NOTHING)}


def task_prefixes(extra: Mapping[str, Any]) -> dict[str, str]:
    """What a released model's config.json puts before the texts of each of its tasks, as T5's does."""
    tasks = extra.get(TASKS)
    if not isinstance(tasks, dict):
        return {}
    prefixes = {name: values.get('prefix') for name, values in tasks.items() if isinstance(values, dict)}
    return {name: prefix for name, prefix in prefixes.items() if isinstance(prefix, str)}


def ids_as_trained(ids: TextToTextIds, extra: Mapping[str, Any], generation: Mapping[str, Any]) -> TextToTextIds:
    """The ids with those that the checkpoint was trained with.

    Args:
        ids: of its tokenizer.
        extra: the keys of its config.json.
        generation: those of its generation_config.json, which count first.

    Raises:
        InputError: one of them is no id of the tokenizer.
    """
    found: dict[str, Any] = {}
    for field, key in KEYS.items():
        value = next((one[key] for one in (generation, extra) if one.get(key) is not None), None)
        if value is None:
            continue
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is not int or not 0 <= value < ids.size:
            raise InputError(
                f'{key} is {value!r}; it must be one of the ids that the tokenizer has, 0 to {ids.size - 1}'
            )
        found[field] = value
    return dataclasses.replace(ids, **found)


def forced_tokens(ids: TextToTextIds, extra: Mapping[str, Any], generation: Mapping[str, Any]) -> Forced:
    """The tokens that a checkpoint's targets are made to have.

    Args:
        ids: as it was trained, see `ids_as_trained`.
        extra: the keys of its config.json, which count where there is no generation_config.json, as in transformers.
        generation: the keys of that.

    Raises:
        InputError: the first one is no id of the tokenizer, or the last one is not the end.
    """
    values = generation or extra
    first, end = values.get(FORCED_FIRST), values.get(FORCED_END)
    if first is not None and (type(first) is not int or not 0 <= first < ids.size):
        raise InputError(f'{FORCED_FIRST} is {first!r}; the tokenizer has the ids 0 to {ids.size - 1}')
    if end not in (None, ids.end, [ids.end]):
        raise InputError(f'{FORCED_END} is {end!r}; it must be {ids.end}, the id of the end, or null')
    return Forced(-1 if first is None else first, end is not None)


def generation_of_run(ids: TextToTextIds, first: int) -> dict[str, Any]:
    """The keys of a generation_config.json for targets with these ids, which all begin with `first` (-1: none)."""
    values = {key: getattr(ids, field) for field, key in KEYS.items()}
    return values | ({FORCED_FIRST: first} if first >= 0 else {})


def with_ids(values: Mapping[str, Any], ids: TextToTextIds) -> dict[str, Any]:
    """The keys of a config.json with these ids, and without those that transformers would take a default of."""
    return dict.fromkeys(UNSAID) | dict(values) | {key: getattr(ids, field) for field, key in KEYS.items()}
