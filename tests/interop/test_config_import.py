"""Tests of imported config.json files: sizes, heads, labels, problems, and one line for unsupported settings."""

import json
import re
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.interop.config_export import make_config_json
from efficient_attention.interop.config_import import default_labels, parse_config_json, read_config_json
from tests.interop.folders import FIXTURES, classes_of

BERT = read_config_json(FIXTURES / 'bert_1')


def described(name: str, ending: str = '', **changes):
    values = classes_of(name)[ending] if ending else read_config_json(FIXTURES / name)
    return parse_config_json(values | changes)


def test_sizes_of_a_bert():
    model = parse_config_json(BERT).model
    assert (model.width, model.layers, model.heads, model.feed_forward_width) == (16, 2, 2, 28)
    assert (model.vocab_size, model.max_length, model.token_types, model.activation) == (61, 24, 2, 'gelu_erf')
    assert (model.attention, model.norm, model.position_limit) == ('full', 'post', 24)


def test_what_sets_the_other_families_apart():
    roberta, distilbert, electra = (described(f'{name}_1').model for name in ('roberta', 'distilbert', 'electra'))
    assert (roberta.position_offset, roberta.position_limit) == (2, 22)
    assert distilbert.token_types == 0 and electra.embedding_width == 8
    albert = described('albert_1').model
    assert (albert.sharing, albert.layers, albert.layer_groups, albert.inner_layers) == ('all', 6, 2, 2)
    longformer = described('longformer_1').model
    assert longformer.attention == 'window(2); window(3)' and longformer.global_tokens == 128
    assert described('longformer_2').model.attention == 'window(2)'
    assert described('big_bird_1').model.attention == 'bigbird(4, 1)'
    assert described('big_bird_3').model.attention == 'full' and described('big_bird_2').model.embedding_scale


@pytest.mark.parametrize(
    ('name', 'ending', 'kind', 'problem', 'transform'),
    [
        ('bert_1', '', 'none', 'none', 'tanh'),
        ('bert_1', 'ForMaskedLM', 'none', 'fill_mask', 'tanh'),
        ('bert_1', 'ForPreTraining', 'none', 'fill_mask', 'tanh'),
        ('bert_1', 'ForNextSentencePrediction', 'none', 'none', 'tanh'),
        ('bert_1', 'ForSequenceClassification', 'sequence', 'classification', 'tanh'),
        ('bert_1', 'ForTokenClassification', 'token', 'token_classification', 'tanh'),
        ('bert_1', 'ForMultipleChoice', 'choice', 'multiple_choice', 'tanh'),
        ('bert_1', 'ForQuestionAnswering', 'span', 'question_answering', 'tanh'),
        ('distilbert_1', 'ForSequenceClassification', 'sequence', 'classification', 'relu'),
        ('electra_1', 'ForSequenceClassification', 'sequence', 'classification', 'gelu_erf'),
        ('electra_1', 'ForPreTraining', 'none', 'none', 'gelu_erf'),
        ('big_bird_1', 'ForSequenceClassification', 'sequence', 'classification', 'gelu_tanh'),
        ('big_bird_1', 'ForMultipleChoice', 'choice', 'multiple_choice', 'tanh'),
    ],
)
def test_heads_and_problems(name: str, ending: str, kind: str, problem: str, transform: str):
    known = described(name, ending)
    assert (known.head.kind, known.problem, known.head.transform) == (kind, problem, transform)
    assert known.labels == (('no', 'maybe', 'yes') if kind in ('sequence', 'token') else ())
    assert known.head.feed_forward == (name == 'big_bird_1' and kind == 'span')


def test_labels_and_regression():
    known = described('bert_1', 'ForSequenceClassification', id2label={'0': 'LABEL_0', '1': 'LABEL_1'})
    assert known.labels == () and known.head.outputs == 2
    known = described('bert_1', 'ForSequenceClassification', id2label={'0': 'LABEL_0'})
    assert known.problem == 'regression' and known.head.outputs == 1
    known = described('bert_1', 'ForSequenceClassification', id2label={'1': 'b', '0': 'a'})
    assert known.labels == ('a', 'b')
    assert default_labels(2) == ('LABEL_0', 'LABEL_1')


@pytest.mark.parametrize(
    ('problem_type', 'count', 'problem'),
    [
        ('regression', 3, 'multi_output_regression'),
        ('regression', 1, 'regression'),
        ('multi_label_classification', 3, 'multi_label_classification'),
        ('multi_label_classification', 1, 'multi_label_classification'),
        ('single_label_classification', 3, 'classification'),
        (None, 3, 'classification'),
    ],
)
def test_what_several_outputs_of_a_row_are_for(problem_type: str | None, count: int, problem: str):
    labels = {'problem_type': problem_type, 'id2label': {str(number): f'n{number}' for number in range(count)}}
    known = described('bert_1', 'ForSequenceClassification', **labels)
    assert (known.problem, known.head.outputs) == (problem, count)
    assert known.labels == (() if problem == 'regression' else tuple(labels['id2label'].values()))
    written = make_config_json(
        known.model, known.head, frozenset({'encoder', 'head'}), family='bert', labels=known.labels, extra=labels
    )
    assert parse_config_json(written).problem == problem


def test_dropout_of_the_head():
    assert described('bert_1', 'ForSequenceClassification', classifier_dropout=0.3).head.dropout_rate == 0.3
    assert described('bert_1', 'ForSequenceClassification', hidden_dropout_prob=0.4).head.dropout_rate == 0.4
    assert described('distilbert_1', 'ForQuestionAnswering', qa_dropout=0.25).head.dropout_rate == 0.25


def test_our_own_key():
    own = {'model': {'attention': 'window(3)', 'global_tokens': 4}, 'problem': 'multi_hop'}
    known = described('bert_1', 'ForQuestionAnswering', efficient_attention=own)
    assert (known.model.attention, known.model.global_tokens) == ('window(3)', 4)
    assert (known.head.kind, known.problem) == ('multi_hop', 'multi_hop')


def test_old_files_without_a_model_type_go_by_the_architecture():
    values = {name: value for name, value in BERT.items() if name != 'model_type'}
    assert parse_config_json(values).family.model_type == 'bert'


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'model_type': 'gpt_neo'}, "model_type is 'gpt_neo'; read here: bert, roberta, distilbert, electra, albert, "),
        ({'architectures': ['BertForWhatever']}, "architectures is 'BertForWhatever'; read here: BertModel, BertFor"),
        ({'architectures': ['RobertaModel']}, "architectures is 'RobertaModel'; read here: BertModel"),
        ({'hidden_size': None}, 'hidden_size is None; it must be a whole number'),
        ({'hidden_size': '16'}, "hidden_size is '16'; it must be a whole number"),
        ({'layer_norm_eps': 'x'}, "layer_norm_eps is 'x'; it must be a number"),
        ({'num_attention_heads': 3}, 'model.heads is 3; it must be a divisor'),
        ({'hidden_act': 'mish'}, "hidden_act is 'mish'; read here: gelu, "),
        ({'position_embedding_type': 'relative_key'}, "position_embedding_type is 'relative_key'; read here: 'absol"),
        ({'is_decoder': True}, 'is_decoder is True; read here: False'),
        ({'pruned_heads': {'1': [0]}}, 'pruned_heads is {'),
        ({'efficient_attention': {'model': {'width': 8}}}, 'efficient_attention.model.width is unknown; known: atten'),
        ({'efficient_attention': {'model': {'attention': 8}}}, 'efficient_attention.model.attention is 8; it must be'),
        ({'efficient_attention': 5}, 'efficient_attention is 5; it must be a JSON object'),
        (
            {'efficient_attention': {'thresholds': []}},
            r'efficient_attention.thresholds is \[\]; it must be a JSON object',
        ),
        ({'efficient_attention': {'examples': {'train': 'a'}}}, 'efficient_attention.examples.train is unknown; known'),
        (
            {'efficient_attention': {'thresholds': {'a': 'b'}}},
            "efficient_attention.thresholds.a is 'b'; it must be a n",
        ),
    ],
)
def test_what_we_do_not_follow_is_named(changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        parse_config_json(BERT | changes)


@pytest.mark.parametrize(
    ('name', 'ending', 'changes', 'message'),
    [
        (
            'bert_1',
            'ForSequenceClassification',
            {'problem_type': 'ranking'},
            "problem_type is 'ranking'; read here: None or 'single",
        ),
        ('bert_1', 'ForMaskedLM', {'tie_word_embeddings': False}, 'tie_word_embeddings is False; read here: True'),
        ('bert_1', 'ForTokenClassification', {'id2label': {'0': 'a', '2': 'b'}}, r'numbers \[0, 2\]; .* be 0 to 1'),
        ('bert_1', 'ForTokenClassification', {'id2label': ['a']}, 'it must give each number its label'),
        ('electra_1', 'ForMultipleChoice', {'summary_type': 'mean'}, "summary_type is 'mean'; read here: 'first'"),
        ('electra_1', 'ForMultipleChoice', {'summary_activation': 'x'}, "summary_activation is 'x'"),
        ('albert_1', '', {'embedding_size': 16}, 'embedding_size is 16, as hidden_size is'),
        ('longformer_1', '', {'attention_window': [4]}, r'attention_window is \[4\]; it must be an even number'),
        ('longformer_1', '', {'attention_window': 3}, r'attention_window is \[3, 3\]'),
        ('big_bird_1', '', {'use_bias': False}, 'use_bias is False; read here: True'),
    ],
)
def test_what_we_do_not_follow_of_one_family(name: str, ending: str, changes: dict, message: str):
    with pytest.raises(InputError, match=message):
        described(name, ending, **changes)


def test_settings_that_nobody_reads_are_no_matter():
    assert described('bert_1', tie_word_embeddings=False).problem == 'none'
    assert described('electra_1', summary_type='mean').head.kind == 'none'


@pytest.mark.parametrize(
    ('content', 'message'),
    [(None, 'no checkpoint there (config.json is missing)'), ('{', 'not JSON'), ('[]', 'no JSON object')],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, message: str):
    if content is not None:
        (tmp_path / 'config.json').write_text(content)
    with pytest.raises(InputError, match=re.escape(message)):
        read_config_json(tmp_path)


@pytest.mark.parametrize('name', ['bert-base-uncased', 'google/mt5-small', 'file'])
def test_the_name_of_a_hub_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    Path('file').touch()
    with pytest.raises(InputError, match=f'^{name} is no folder; names of a hub are not downloaded: download the mode'):
        read_config_json(Path(name))


def test_what_writes_the_config_of_a_run_again_is_said(tmp_path: Path):
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / 'config.json').write_text('{"model": ')
    with pytest.raises(InputError, match=r'not JSON \(.*\); delete the file and repeat the training command, which'):
        read_config_json(tmp_path)


def test_values_are_read(tmp_path: Path):
    (tmp_path / 'config.json').write_text(json.dumps({'a': 'ü'}), encoding='utf-8')
    assert read_config_json(tmp_path) == {'a': 'ü'}
