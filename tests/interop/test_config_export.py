"""Tests that our configs exported as config.json reopen as the same config, and that inexpressible ones are refused."""

import dataclasses

import pytest

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_export import make_config_json
from efficient_attention.interop.config_import import parse_config_json, read_config_json
from tests.interop.folders import FIXTURES, NAMES, classes_of

NONE = HeadConfig()
ENCODER = frozenset({'encoder'})
MODEL = ModelConfig(width=16, heads=2)
CLASSES = [(name, ending) for name in NAMES for ending in ['', *classes_of(name)]]


def parts_of(ending: str, name: str) -> frozenset[str]:
    """Returns the names of the parameter groups of a class, such as 'pooler'."""
    parts = {'ForMaskedLM': {'masked_lm'}, 'ForNextSentencePrediction': {'pooler', 'pair'}}
    parts['ForPreTraining'] = {'detector'} if name.startswith('electra') else {'masked_lm', 'pooler', 'pair'}
    return ENCODER | parts.get(ending, set())


@pytest.mark.parametrize(('name', 'ending'), CLASSES)
def test_every_class_is_read_written_and_read_again(name: str, ending: str):
    values = classes_of(name)[ending] if ending else read_config_json(FIXTURES / name)
    known = parse_config_json(values)
    family = known.family.model_type
    for extra in ({}, values):  # with no other keys, and with the keys of the original file
        written = make_config_json(
            known.model, known.head, parts_of(ending, name), family=family, labels=known.labels, extra=extra
        )
        assert parse_config_json(written) == known
        assert 'efficient_attention' not in written
    kept = {
        key: written[key] for key in values.keys() & written.keys() if key not in ('problem_type', 'attention_window')
    }
    assert kept == {key: values[key] for key in kept} | {
        key: kept[key] for key in kept if key in ('classifier_dropout', 'hidden_act')
    }


@pytest.mark.parametrize(
    ('model', 'head', 'family'),
    [
        (MODEL, NONE, 'bert'),
        (dataclasses.replace(MODEL, sharing='all', embedding_width=8), NONE, 'albert'),
        (dataclasses.replace(MODEL, position_offset=2), NONE, 'roberta'),
        (dataclasses.replace(MODEL, token_types=0), NONE, 'distilbert'),
        (dataclasses.replace(MODEL, embedding_width=8), NONE, 'electra'),
        (dataclasses.replace(MODEL, attention='bigbird(64, 3)'), NONE, 'big_bird'),
        (dataclasses.replace(MODEL, embedding_scale=True), NONE, 'big_bird'),
        (dataclasses.replace(MODEL, attention='window(8)', global_tokens=128, position_offset=2), NONE, 'longformer'),
        (MODEL, HeadConfig(kind='sequence', transform='gelu_tanh'), 'big_bird'),
        (MODEL, HeadConfig(kind='span', feed_forward=True), 'big_bird'),
        (MODEL, HeadConfig(kind='sequence', transform='gelu_erf'), 'electra'),
        (MODEL, HeadConfig(kind='choice', transform='none'), 'electra'),
    ],
)
def test_a_model_of_no_family_gets_the_one_that_says_most_of_it(model: ModelConfig, head: HeadConfig, family: str):
    values = make_config_json(model, head, ENCODER)
    assert values['model_type'] == family
    known = parse_config_json(values)
    assert known.model == model
    if head.kind != 'none':
        assert dataclasses.replace(known.head, transform=head.transform) == head
        assert head.kind == 'span' or known.head.transform == head.transform


def test_what_no_family_says_goes_under_our_own_key():
    model = dataclasses.replace(MODEL, attention='window(2) | global_tokens(1)', remat='full', global_tokens=4)
    values = make_config_json(model, HeadConfig(kind='multi_hop'), ENCODER, family='bert')
    own = {'attention': 'window(2) | global_tokens(1)', 'remat': 'full', 'global_tokens': 4}
    assert values['efficient_attention'] == {'model': own, 'problem': 'multi_hop'}
    assert values['architectures'] == ['BertForQuestionAnswering']
    assert parse_config_json(values).model == model


def test_what_predictions_depend_on_goes_there_too():
    kept = {'examples': {'has_no_answer': True}, 'thresholds': {}}
    values = make_config_json(MODEL, HeadConfig(kind='span'), ENCODER, family='bert', kept=kept)
    assert values['efficient_attention'] == {'examples': {'has_no_answer': True}}
    known = parse_config_json(values)
    assert (known.examples, known.thresholds) == (kept['examples'], {})


def test_stale_labels_and_our_old_key_are_left_out():
    extra = {'id2label': {'0': 'a'}, 'efficient_attention': {'model': {'remat': 'full'}}, 'vocab': 'kept'}
    values = make_config_json(MODEL, HeadConfig(kind='span'), ENCODER, family='bert', extra=extra)
    assert 'id2label' not in values and 'efficient_attention' not in values and values['vocab'] == 'kept'


@pytest.mark.parametrize(
    ('fields', 'family', 'message'),
    [
        ({'positions': 'none', 'rotary': True}, '', 'no Hugging Face family has .*model.rotary True'),
        ({'norm': 'pre'}, '', "no Hugging Face family has model.norm 'pre'$"),
        ({'score': 'general'}, '', "no Hugging Face family has model.score 'general'$"),
        ({'position_offset': 2}, 'bert', 'no Hugging Face bert has model.position_offset 2'),
        ({'token_types': 0}, 'bert', 'no Hugging Face bert has model.token_types 0'),
        ({'sharing': 'all'}, 'albert', r'no Hugging Face albert has such a model \(embedding_size is 16'),
        ({'sharing': 'all'}, 'bert', "no Hugging Face bert has model.sharing 'all'"),
        ({'position_offset': 2}, 'longformer', 'no Hugging Face longformer has model.global_tokens 0'),
        ({'embedding_norm': False}, '', 'no Hugging Face family has model.embedding_norm False'),
    ],
)
def test_what_cannot_be_said_is_named(fields: dict, family: str, message: str):
    model = dataclasses.replace(MODEL, **fields)
    with pytest.raises(InputError, match=message):
        make_config_json(model, NONE, ENCODER, family=family)


@pytest.mark.parametrize(
    ('head', 'parts', 'family', 'message'),
    [
        (HeadConfig(kind='sequence', transform='relu'), ENCODER, 'bert', "bert has head.transform 'relu'"),
        (HeadConfig(kind='span', feed_forward=True), ENCODER, 'bert', 'bert has head.feed_forward True'),
        (HeadConfig(kind='sequence', pooling='mean'), ENCODER, 'bert', "bert has head.pooling 'mean'"),
        (HeadConfig(kind='sequence', sentence_layers=1), ENCODER, 'bert', 'bert has head.sentence_layers 1'),
        (HeadConfig(kind='token', features='mix'), ENCODER, 'bert', "bert has head.features 'mix'"),
        (HeadConfig(kind='span'), ENCODER, 'big_bird', 'big_bird has head.feed_forward False'),
        (NONE, ENCODER | {'masked_lm'}, 'electra', "electra has model.activation 'gelu_tanh' where the masked-LM"),
        (NONE, ENCODER | {'masked_lm', 'pair'}, 'distilbert', 'distilbert has .*a head for sentence pairs'),
    ],
)
def test_heads_that_a_family_has_not_are_named(head: HeadConfig, parts: frozenset, family: str, message: str):
    model = dataclasses.replace(MODEL, token_types=0) if family == 'distilbert' else MODEL
    with pytest.raises(InputError, match=message):
        make_config_json(model, head, parts, family=family)
