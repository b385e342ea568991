"""Parses a Hugging Face config.json into this project's configs of model and head, and refuses unsupported settings."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.dict_conversion import check_integer_not_too_large
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.config.model import MOST_LAYERS, ModelConfig
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.errors import KINDS_IN_WORDS, InputError, require
from efficient_attention.interop.config_json_keys import (
    ACTIVATIONS,
    FIELDS,
    FIXED,
    GLOBAL_TOKENS,
    INERT,
    LANGUAGE_MODELLING,
    MULTI_LABEL,
    NUMBERS,
    OUR_EXAMPLES,
    OUR_KEY,
    OUR_PAIRS,
    SEVERAL_NUMBERS,
    SHIFTED,
    SHIFTED_PAD,
    TEXT_TO_TEXT,
    custom_key_fields,
    join_layer_mechanisms,
)
from efficient_attention.interop.encoder_decoder_config_keys import (
    check_supported_settings,
    feed_forward_activation,
    text_to_text_fields,
    with_default_keys,
)
from efficient_attention.interop.huggingface_tensor_names import FAMILIES, HuggingFaceFamily
from efficient_attention.interop.language_model_config_keys import (
    check_language_model_settings,
    with_feed_forward_width,
)
from efficient_attention.workdir.checkpoint_reader import FOLDER as CHECKPOINTS
from efficient_attention.workdir.config_file import REWRITTEN

CONFIG = 'config.json'
# Ending of a transformers class name -> (kind of head, value of `ExamplesConfig.problem`).
ARCHITECTURES = {
    'Model': ('none', 'none'),
    'ForMaskedLM': ('none', 'fill_mask'),
    'ForPreTraining': ('none', 'fill_mask'),
    'ForNextSentencePrediction': ('none', 'none'),
    'ForSequenceClassification': ('sequence', 'classification'),
    'ForTokenClassification': ('token', 'token_classification'),
    'ForMultipleChoice': ('choice', 'multiple_choice'),
    'ForQuestionAnswering': ('span', 'question_answering'),
}
DROPOUTS = {  # head kind -> config.json keys of DistilBERT for the head's dropout, which are read before HEAD_DROPOUTS
    'sequence': ('seq_classif_dropout',),
    'choice': ('seq_classif_dropout',),
    'span': ('qa_dropout',),
}
# names of the config groups that exports keep under this project's own key in config.json, OUR_KEY
OUR_GROUPS = ('model', 'examples', 'thresholds', 'pairs')
HEAD_DROPOUTS = ('classifier_dropout', 'classifier_dropout_prob')
Values = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """What a Hugging Face config.json describes, as this project's configs: the model, its head, labels and problem."""

    family: HuggingFaceFamily
    ending: str  # ending of the transformers class name, a key of ARCHITECTURES
    model: ModelConfig
    head: HeadConfig
    labels: tuple[str, ...]
    problem: str
    examples: Mapping[str, Any]  # fields of the `examples` config on which predictions depend (OUR_EXAMPLES)
    thresholds: Mapping[str, float]
    # fields of the `pairs` config on which predictions depend (OUR_PAIRS)
    pairs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_config_json(folder: Path) -> dict[str, Any]:
    """Returns the content of a folder's config.json; raises InputError if the file is missing or holds no JSON
    object.
    """
    path = folder / CONFIG
    try:
        values = read_json_file(path)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            raise InputError(
                f'{folder} is no folder; names of a hub are not downloaded: download the model, and give its folder'
            ) from None
        raise InputError(f'{folder}: no checkpoint there ({CONFIG} is missing)') from None
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    except ValueError as error:
        advice = f'; {REWRITTEN}' if (folder / CHECKPOINTS).is_dir() else ''
        raise InputError(f'{path}: not JSON ({error}){advice}') from None
    if not isinstance(values, dict):
        raise InputError(f'{path}: no JSON object')
    return values


def parse_config_json(values: Values) -> ModelDescription:
    """Returns the model, head, labels and problem that a Hugging Face config.json describes.

    Raises:
        InputError: an unknown family or architecture, a missing key, or an unsupported setting.
    """
    family, ending = detect_family(values)
    if family.is_encoder_decoder:
        return parse_encoder_decoder(values, family, ending)
    if family.is_language_model:
        return parse_language_model(values, family, ending)
    for key, inert in INERT.items():
        if key in values and values[key] not in inert and not _is_unused_key(key, values, ending):
            raise InputError(f'{key} is {values[key]!r}; read here: {" or ".join(map(repr, inert)) or "without it"}')
    check_custom_key(values)
    ours = values.get(OUR_KEY, {})
    model = parse_model_config(values, family)
    kind, problem = ARCHITECTURES[ending]
    if ours.get('problem') == 'multi_hop':
        kind, problem = 'multi_hop', 'multi_hop'
    if family.detector and ending == 'ForPreTraining':
        problem = 'none'  # This ELECTRA model detects replaced tokens, so it cannot fill masks.
    labels, count = parse_labels(values)
    if kind == 'sequence':
        problem = head_problem_type(values.get('problem_type'), count)
    has_labels = kind in ('sequence', 'token') and problem != 'regression'
    head = parse_head_config(values, family, model, kind, count)
    return ModelDescription(
        family,
        ending,
        model,
        head,
        labels if has_labels else (),
        problem,
        examples=custom_key_group(values, 'examples', ExamplesConfig, OUR_EXAMPLES),
        thresholds=custom_key_thresholds(values),
    )


def head_problem_type(kind: str | None, count: int) -> str:
    """Returns the problem that a classification head solves, from config.json's `problem_type` and the number of
    outputs per row. The default is classification.
    """
    if kind == MULTI_LABEL:
        return MULTI_LABEL
    if count == 1:
        return 'regression'
    return SEVERAL_NUMBERS if kind == NUMBERS else 'classification'


def parse_encoder_decoder(values: Values, family: HuggingFaceFamily, ending: str) -> ModelDescription:
    """Returns the model that an encoder-decoder's config.json describes. The kind of output layer is not known yet,
    because only the tensors show it.
    """
    check_supported_settings(values, family.model_type)
    check_custom_key(values)
    model = parse_model_config(values, family)
    key, _ = FIELDS[family.model_type]['decoder_layers']
    require(model.decoder_layers >= 1, key, model.decoder_layers, 'at least 1')
    pairs = custom_key_group(values, 'pairs', PairsConfig, OUR_PAIRS)
    return ModelDescription(
        family, ending, model, HeadConfig(), (), TEXT_TO_TEXT, examples={}, thresholds={}, pairs=pairs
    )


def parse_language_model(values: Values, family: HuggingFaceFamily, ending: str) -> ModelDescription:
    """Returns the decoder that a language model's config.json describes."""
    check_language_model_settings(values)
    check_custom_key(values)
    model = parse_model_config(values, family)
    return ModelDescription(family, ending, model, HeadConfig(), (), LANGUAGE_MODELLING, examples={}, thresholds={})


def _is_unused_key(key: str, values: Values, ending: str) -> bool:
    """Returns whether an unsupported config.json key has no effect on the class of model that config.json names."""
    if key == 'tie_word_embeddings':
        return ending not in ('ForMaskedLM', 'ForPreTraining')
    if key == 'problem_type':
        return ending != 'ForSequenceClassification'
    if key == 'summary_type':
        return ending != 'ForMultipleChoice'
    if key == 'attention_dilation':
        dilation = values[key]
        return isinstance(dilation, list) and all(one == 1 for one in dilation)
    return key == 'use_bias' and values.get('model_type') != 'big_bird'


def detect_family(values: Values) -> tuple[HuggingFaceFamily, str]:
    """Returns the Hugging Face family that config.json names, and the ending of its class name, such as
    'ForMaskedLM'.
    """
    names, kind = values.get('architectures') or [''], values.get('model_type')
    name = names[0] if isinstance(names, list) else None
    if not isinstance(name, str):
        raise InputError(f'architectures is {names!r}; it must be a list of texts')
    families = [one for one in FAMILIES.values() if kind == one.model_type or (not kind and name.startswith(one.stem))]
    if not families:
        raise InputError(f'model_type is {kind!r}; read here: {", ".join(FAMILIES)}')
    family = families[0]
    if not name:
        return family, 'Model'
    ending = name.removeprefix(family.stem)
    endings = ('Model', *family.generators) if family.decoder else tuple(ARCHITECTURES)
    if not name.startswith(family.stem) or ending not in endings:
        known = ', '.join(f'{family.stem}{end}' for end in endings)
        raise InputError(f'architectures is {name!r}; read here: {known}')
    return family, ending


def parse_model_config(values: Values, family: HuggingFaceFamily) -> ModelConfig:
    """Returns the model's config, read from the keys of a Hugging Face config.json.

    Raises:
        InputError: a key is missing or has an unsupported value.
    """
    kind = family.model_type
    fields: dict[str, Any] = dict(FIXED[kind])
    values = with_feed_forward_width(values) if family.is_language_model else with_default_keys(values, kind)
    for field, (key, default) in FIELDS[kind].items():
        fields[field] = (
            parse_activation(values, key, default)
            if field == 'activation'
            else checked_config_value(values, key, default)
        )
    fields |= text_to_text_fields(values, kind, fields)
    if kind in SHIFTED:
        fields['position_offset'] = checked_config_value(values, 'pad_token_id', SHIFTED_PAD) + 1
    if kind == 'albert':
        fields['layers'] *= fields['inner_layers']
        if fields['embedding_width'] == fields['width']:
            raise InputError(f'embedding_size is {fields["width"]}, as hidden_size is; read here: another for albert')
    if kind == 'longformer':
        fields |= {'attention': parse_longformer_windows(values), 'global_tokens': GLOBAL_TOKENS}
    if kind == 'big_bird' and checked_config_value(values, 'attention_type', 'block_sparse') == 'block_sparse':
        block, random = (
            checked_config_value(values, 'block_size', 64),
            checked_config_value(values, 'num_random_blocks', 3),
        )
        fields['attention'] = f'bigbird({block}, {random})'
    return dataclasses.replace(
        ModelConfig(**fields), **custom_key_group(values, 'model', ModelConfig, custom_key_fields(kind))
    )


def checked_config_value(values: Values, key: str, default: Any) -> Any:
    """Returns the value of a config.json key, which must have the type of the default; without a default, it must be a
    whole number.
    """
    value = values.get(key, default)
    kind = int if default is None else type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        words = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a text'}[kind]
        what = 'missing' if key not in values else f'{value!r}'
        raise InputError(f'{key} is {what}; it must be {words}')
    check_integer_not_too_large(value, key)
    return value


def parse_activation(values: Values, key: str, default: str) -> str:
    """Returns this project's name of the activation that a config.json key names."""
    if key == 'feed_forward_proj':
        return feed_forward_activation(values)[0]
    name = checked_config_value(values, key, default)
    if name not in ACTIVATIONS:
        raise InputError(f'{key} is {name!r}; read here: {", ".join(ACTIVATIONS)}')
    return ACTIVATIONS[name]


def parse_longformer_windows(values: Values) -> str:
    """Returns a Longformer's attention windows in this project's text form, such as 'window(256)'. config.json states
    the width of both sides together.
    """
    windows = values.get('attention_window', 512)
    layers = checked_config_value(values, 'num_hidden_layers', None)
    require(0 < layers <= MOST_LAYERS, 'num_hidden_layers', layers, f'1 to {MOST_LAYERS}')
    windows = [windows] * layers if isinstance(windows, int) else windows
    is_list = isinstance(windows, list) and len(windows) == layers
    if not is_list or not all(type(width) is int and width > 0 and width % 2 == 0 for width in windows):
        raise InputError(
            f'attention_window is {windows!r}; it must be an even number above 0, or one for each of {layers} layers'
        )
    return join_layer_mechanisms([f'window({width // 2})' for width in windows])


def check_custom_key(values: Values) -> None:
    """Raises InputError if this project's own key in a config.json, or a group in it, does not hold a JSON object."""
    ours = values.get(OUR_KEY, {})
    groups = {f'{OUR_KEY}.{name}': ours.get(name, {}) for name in OUR_GROUPS} if isinstance(ours, dict) else {}
    for name, value in {OUR_KEY: ours, **groups}.items():
        if not isinstance(value, dict):
            raise InputError(f'{name} is {value!r}; it must be a JSON object')


def custom_key_group(values: Values, group: str, kind: type, known: Sequence[str]) -> dict[str, Any]:
    """Returns the config fields in one group under this project's own key of a config.json; raises InputError for
    unknown fields.
    """
    fields = dict(values.get(OUR_KEY, {}).get(group, {}))
    for name, value in fields.items():
        if name not in known:
            raise InputError(f'{OUR_KEY}.{group}.{name} is unknown; known: {", ".join(known)}')
        expected = type(kind.__dataclass_fields__[name].default)  # type: ignore[attr-defined]
        if expected is tuple and isinstance(value, list) and all(type(one) in (int, str) for one in value):
            fields[name] = value = tuple(value)
        if type(value) is not expected:
            raise InputError(f'{OUR_KEY}.{group}.{name} is {value!r}; it must be {KINDS_IN_WORDS[expected]}')
        for one in value if isinstance(value, tuple) else (value,):
            check_integer_not_too_large(one, f'{OUR_KEY}.{group}.{name}')
    return fields


def custom_key_thresholds(values: Values) -> dict[str, float]:
    """Returns the decision thresholds in a config.json that this project exported; the original run chose them on its
    validation set.
    """
    thresholds = values.get(OUR_KEY, {}).get('thresholds', {})
    for name, value in thresholds.items():
        if type(value) not in (int, float):
            raise InputError(f'{OUR_KEY}.thresholds.{name} is {value!r}; it must be a number')
    return dict(thresholds)


def parse_head_config(
    values: Values, family: HuggingFaceFamily, model: ModelConfig, kind: str, count: int
) -> HeadConfig:
    """Returns the head's config from a config.json. If the checkpoint has no head, the config is that of a new head in
    its family.
    """
    pooled = family.choice if kind == 'choice' else family.sequence
    transform = pooled.activation or model.activation
    if kind == 'choice' and family.model_type == 'electra':
        transform = electra_summary_activation(values)
    keys = (*DROPOUTS.get(kind, ()), *HEAD_DROPOUTS)
    rates = [checked_config_value(values, key, 0.0) for key in keys if values.get(key) is not None]
    return HeadConfig(
        kind=kind,
        outputs=count if kind in ('sequence', 'token') else HeadConfig.outputs,
        transform=transform,
        feed_forward=len(family.span) > 1 and kind in ('none', 'span', 'multi_hop'),
        dropout_rate=rates[0] if rates else model.dropout_rate,
    )


def electra_summary_activation(values: Values) -> str:
    """Returns the activation of the layer that summarises an answer choice in ELECTRA's multiple-choice head."""
    if not checked_config_value(values, 'summary_use_proj', True):
        return 'none'
    name = values.get('summary_activation', 'gelu')
    known = {'tanh': 'tanh', **ACTIVATIONS}
    if name not in known:
        raise InputError(f'summary_activation is {name!r}; read here: {", ".join(known)}')
    return known[name]


def default_labels(count: int) -> tuple[str, ...]:
    """Returns the label names that transformers gives to outputs without names: 'LABEL_0', 'LABEL_1', ..."""
    return tuple(f'LABEL_{number}' for number in range(count))


def parse_labels(values: Values) -> tuple[tuple[str, ...], int]:
    """Returns a config.json's label names in the order of the outputs, and the number of outputs; () if the outputs
    have no names.
    """
    labels = values.get('id2label')
    if labels is None:
        return (), checked_config_value(values, 'num_labels', 2)
    try:
        names = {int(number): str(name) for number, name in labels.items()}
    except (AttributeError, ValueError):
        raise InputError(f'id2label is {labels!r}; it must give each number its label') from None
    if sorted(names) != list(range(len(names))):
        raise InputError(f'id2label has the numbers {sorted(names)}; they must be 0 to {len(names) - 1}')
    ordered = tuple(names[number] for number in range(len(names)))
    return (() if all(re.fullmatch(r'LABEL_\d+', name) for name in ordered) else ordered), len(ordered)
