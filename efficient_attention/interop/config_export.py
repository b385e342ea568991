"""Converts this project's configs to a Hugging Face config.json, and refuses models that no Hugging Face family can
express.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Block, GlobalTokens, Or, RandomTiles, Window
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_import import (
    ARCHITECTURES,
    DROPOUTS,
    HEAD_DROPOUTS,
    default_labels,
    parse_model_config,
)
from efficient_attention.interop.config_json_keys import (
    ACTIVATIONS,
    FIELDS,
    MULTI_LABEL,
    NUMBERS,
    OUR_KEY,
    SHIFTED,
    custom_key_fields,
)
from efficient_attention.interop.encoder_decoder_config_keys import encoder_decoder_config_json
from efficient_attention.interop.huggingface_tensor_names import FAMILIES, HuggingFaceFamily
from efficient_attention.interop.language_model_config_keys import language_model_config_json

# A model of unknown family is tried in each Hugging Face family, in this order.
# An export uses the family whose config.json lacks keys for the fewest fields; among equal families, the first.
ORDER = ('bert', 'albert', 'roberta', 'distilbert', 'electra', 'big_bird', 'longformer')
# order in which an export tries the families of encoder-decoders
TEXT_TO_TEXT_ORDER = ('t5', 'bart', 'marian', 'pegasus')
LANGUAGE_MODEL_ORDER = ('gpt2',)
ENDINGS = {kind: ending for ending, (kind, _) in reversed(ARCHITECTURES.items()) if kind != 'none'}
ENDINGS['multi_hop'] = ENDINGS['span']
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
# This entry of config.json describes the tensors of the imported model, so an export must not copy it.
QUANTIZED = 'quantization_config'
LABEL_KEYS = ('id2label', 'label2id', 'num_labels', 'problem_type')
Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class FamilyConfigValues:
    """A model expressed in the config.json keys of one Hugging Face family, and the fields for which the family has no
    key.
    """

    values: Values
    # fields for which the family has no key; an export stores them under this project's own key, OUR_KEY
    unsaid: Values
    # each field that an export cannot store at all, as text 'field value'; if there is any, the family cannot be used
    refused: tuple[str, ...]
    is_possible: bool = True  # False if no model of the family can have this model's sizes

    @property
    def family_mismatch(self) -> tuple[bool, int, int]:
        """How badly the Hugging Face family fits the model, as a sort key; lower is better."""
        return not self.is_possible, len(self.refused), len(self.unsaid)


def make_config_json(
    model: ModelConfig,
    head: HeadConfig,
    parts: frozenset[str],
    *,
    family: str = '',
    labels: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
    kept: Mapping[str, Mapping[str, Any]] | None = None,
) -> Values:
    """Returns the content of a Hugging Face config.json for a model and its head.

    Args:
        model: the model's config.
        head: the head's config.
        parts: names of the groups of parameters: 'encoder', 'decoder', 'masked_lm', 'pooler', 'pair', 'detector',
            'head'.
        family: the family's `model_type`; '' = the family with the fewest fields under OUR_KEY.
        labels: names of the outputs.
        extra: keys of the config.json that the model was imported with, such as special token ids.
        kept: further groups under OUR_KEY: 'examples', 'thresholds', 'pairs'; empty groups are left out.

    Raises:
        InputError: no family, or not this one, supports the model or the head; the message names the fields.
    """
    extra = dict(extra or {})
    is_decoder = 'decoder' in parts and 'encoder' not in parts
    order = LANGUAGE_MODEL_ORDER if is_decoder else TEXT_TO_TEXT_ORDER if 'decoder' in parts else ORDER
    choices = {
        name: fit_to_family(FAMILIES[name], model, head, parts, extra) for name in ([family] if family else order)
    }
    name = min(choices, key=lambda family: choices[family].family_mismatch)
    said, chosen = choices[name], FAMILIES[name]
    if said.refused:
        raise InputError(f'no Hugging Face {family or "family"} has {", ".join(said.refused)}')
    left_out = LABEL_KEYS if head.kind != 'none' else ()
    values = {key: value for key, value in extra.items() if key not in (OUR_KEY, QUANTIZED, *left_out)}
    values |= said.values | {'model_type': name, 'architectures': [architecture(chosen, head, parts)]}
    values |= head_config_json(chosen, model, head, labels)
    if head.kind == 'sequence' and extra.get('problem_type') in (MULTI_LABEL, NUMBERS):
        values['problem_type'] = extra['problem_type']
    kept_here: Values = {name: dict(group) for name, group in {'model': said.unsaid, **(kept or {})}.items() if group}
    if head.kind == 'multi_hop':
        kept_here['problem'] = 'multi_hop'
    return values | ({OUR_KEY: kept_here} if kept_here else {})


def fit_to_family(
    family: HuggingFaceFamily, model: ModelConfig, head: HeadConfig, parts: frozenset[str], extra: Mapping[str, Any]
) -> FamilyConfigValues:
    """Returns the model and its head expressed in the config.json keys of one Hugging Face family, and the fields
    without a key.
    """
    said = model_in_family_keys(family, model, extra)
    return dataclasses.replace(said, refused=(*said.refused, *head_incompatibilities(family, model, head, parts)))


def model_in_family_keys(family: HuggingFaceFamily, model: ModelConfig, extra: Mapping[str, Any]) -> FamilyConfigValues:
    """Returns the model, without its head, expressed in the config.json keys of one Hugging Face family.

    The keys are read back as a model; fields that differ from the original are fields without a key.
    """
    kind = family.model_type
    values: Values = {}
    for field, (key, _) in FIELDS[kind].items():
        values[key] = getattr(model, field)
    values[FIELDS[kind]['activation'][0]] = THEIR_ACTIVATIONS[model.activation]
    if kind == 'albert':
        values['num_hidden_layers'] = model.layers // model.inner_layers
    if kind in SHIFTED:
        values['pad_token_id'] = max(model.position_offset - 1, 0)
    if family.is_language_model:
        values |= language_model_config_json(model)
    elif family.decoder:
        values |= encoder_decoder_config_json(kind, model)
    else:
        values |= attention_config_json(kind, model, extra)
    try:
        read = parse_model_config(values, family)
    except InputError as error:
        return FamilyConfigValues(values, {}, (f'such a model ({error})',), is_possible=False)
    differing = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(ModelConfig)
        if getattr(model, field.name) != getattr(read, field.name) and field.name not in family.output_fields
    }
    unsaid = {name: value for name, value in differing.items() if name in custom_key_fields(kind)}
    lost = [name for name in differing if name not in unsaid]
    # All encoder families except DistilBERT add a token-type vector to every token.
    if kind != 'distilbert' and not family.decoder and not model.token_types:
        lost.append('token_types')
    if kind == 'longformer' and not model.global_tokens:  # A Longformer always has projections for global tokens.
        lost.append('global_tokens')
    return FamilyConfigValues(values, unsaid, tuple(f'model.{name} {getattr(model, name)!r}' for name in lost))


def attention_config_json(kind: str, model: ModelConfig, extra: Mapping[str, Any]) -> Values:
    """Returns the config.json keys about attention, for the families Longformer and BigBird; {} for other families."""
    patterns = [one.pattern if isinstance(one, Softmax) else None for one in model.mechanisms]
    if kind == 'longformer':
        radii = [one.radius if isinstance(one, Window) and one.dilation == 1 else 0 for one in patterns]
        # OUR_KEY stores the attention pattern, so `attention_window` keeps its imported or default value.
        if not all(radii):
            return {'attention_window': extra.get('attention_window', 512)}
        return {'attention_window': [2 * radii[layer % len(radii)] for layer in range(model.layers)]}
    if kind == 'big_bird':
        match patterns:
            case [Or(Or(Block(size=block), GlobalTokens()), RandomTiles(per_row=count))] if model.attention == (
                f'bigbird({block}, {count})'
            ):
                return {'attention_type': 'block_sparse', 'block_size': block, 'num_random_blocks': count}
        if model.mechanisms == (parse_mechanism('full'),):
            return {'attention_type': 'original_full'}
        return {'attention_type': extra.get('attention_type', 'original_full')}
    return {}


def architecture(family: HuggingFaceFamily, head: HeadConfig, parts: frozenset[str]) -> str:
    """Returns the name of the transformers class for a model with this head or these pretraining heads, such as
    'BertForMaskedLM'.
    """
    if head.kind != 'none':
        return f'{family.stem}{ENDINGS[head.kind]}'
    if family.decoder:
        return f'{family.stem}{family.generators[0]}'
    if 'detector' in parts or {'masked_lm', 'pair'} <= parts:
        ending = 'ForPreTraining'
    elif 'pair' in parts:
        ending = 'ForNextSentencePrediction'
    else:
        ending = 'ForMaskedLM' if 'masked_lm' in parts else 'Model'
    return f'{family.stem}{ending}'


def head_config_json(
    family: HuggingFaceFamily, model: ModelConfig, head: HeadConfig, labels: tuple[str, ...]
) -> Values:
    """Returns the config.json keys about a head: its labels, dropout and activation; {} for a model with a decoder."""
    values: Values = {}
    if family.decoder:
        return values
    if head.kind in ('sequence', 'token'):
        names = labels if len(labels) == head.outputs else default_labels(head.outputs)
        values['id2label'] = {str(number): name for number, name in enumerate(names)}
        values['label2id'] = {name: number for number, name in enumerate(names)}
    if head.kind == 'sequence':
        values['problem_type'] = 'regression' if head.outputs == 1 else 'single_label_classification'
    if head.kind != 'none' or head.dropout_rate != model.dropout_rate:
        keys = DROPOUTS.get(head.kind, ()) if family.model_type == 'distilbert' else ()
        keys = keys or (HEAD_DROPOUTS[family.model_type == 'albert'],)
        values |= dict.fromkeys(keys, head.dropout_rate)
    if family.model_type == 'electra' and head.kind == 'choice':
        values['summary_use_proj'] = head.transform != 'none'
        values['summary_activation'] = (THEIR_ACTIVATIONS | {'tanh': 'tanh'}).get(head.transform, 'gelu')
    return values


def head_incompatibilities(
    family: HuggingFaceFamily, model: ModelConfig, head: HeadConfig, parts: frozenset[str]
) -> list[str]:
    """Returns the config fields, with their values, that make prediction heads compute something else in transformers
    than in this project.
    """
    misfits = []
    if bool(family.decoder) != ('decoder' in parts):
        misfits.append('no decoder' if family.decoder else 'a decoder')
    if bool(family.encoder) != ('encoder' in parts):
        misfits.append('no encoder' if family.encoder else 'an encoder')
    if 'masked_lm' in parts and family.is_masked_lm_erf and model.activation != 'gelu_erf':
        misfits.append(f"model.activation {model.activation!r} where the masked-LM head has 'gelu_erf'")
    if 'pair' in parts and not family.pair:
        misfits.append('a head for sentence pairs')
    if head.kind in ('span', 'multi_hop') and head.feed_forward != ('head/inner' in family.span):
        misfits.append(f'head.feed_forward {head.feed_forward!r}')
    for name in ('features', 'pooling', 'sentence_layers'):
        if getattr(head, name) != getattr(HeadConfig(), name):
            misfits.append(f'head.{name} {getattr(head, name)!r}')
    if head.kind == 'towers':
        misfits.append("head.kind 'towers'")
    pooled = {'sequence': family.sequence, 'choice': family.choice}.get(head.kind)
    is_free = family.model_type == 'electra' and head.kind == 'choice'
    if pooled and not is_free and head.transform != (pooled.activation or model.activation):
        misfits.append(f'head.transform {head.transform!r}')
    return misfits
