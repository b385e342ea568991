"""Tests the line that says which backend computes the attention of which layers."""

import types

import pytest

from efficient_attention.attention.choice_log import Caller, Choice, Refusal
from efficient_attention.config.data import DataConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.training.attention_line import attention_line, number_ranges, remedies_of_run

DROPOUT = {'cudnn': Refusal('cudnn has no attention dropout', ('attention dropout',))}
HEADS = {
    'cudnn': Refusal(
        'cudnn has no attention dropout, no support for heads of width 9',
        ('attention dropout', 'support for heads of width 9'),
    )
}
WINDOW = {'cudnn': Refusal('cudnn supports Softmax over full, not window(2)', ())}
FLOAT32 = {'mosaic': Refusal('mosaic has no inputs of type float32', ('inputs of type float32',))}
ALL = Caller((0, 1, 2, 3))


@pytest.mark.parametrize(
    'choices, line',
    [
        ([], ''),
        ([Choice(ALL, 'full', 'cudnn', {})] * 2, 'attention: layers 1-4: cudnn over full'),
        (
            [Choice(ALL, 'full', 'blocked', DROPOUT)],
            'attention: layers 1-4: blocked over full (cudnn would work with model.attention_dropout_rate=0)',
        ),
        (
            [Choice(ALL, 'full', 'blocked', HEADS)],
            'attention: layers 1-4: blocked over full (cudnn has no attention dropout, '
            'no support for heads of width 9)',
        ),
        ([Choice(ALL, 'window(2)', 'mosaic', WINDOW)], 'attention: layers 1-4: mosaic over window(2)'),
        (
            [Choice(Caller((0, 1)), 'full', 'mosaic', DROPOUT), Choice(Caller((2, 3)), 'window(2)', 'mosaic', WINDOW)],
            'attention: layers 1-2: mosaic over full (cudnn would work with model.attention_dropout_rate=0); '
            'layers 3-4: mosaic over window(2)',
        ),
        (
            [Choice(ALL, 'window(2)', 'blocked', WINDOW | FLOAT32)],
            'attention: layers 1-4: blocked over window(2) (cudnn supports Softmax over full, not window(2); '
            'mosaic would work with model.dtype=bfloat16)',
        ),
        (
            [Choice(Caller((0, 2)), 'causal', 'cudnn', {}), Choice(Caller((1, 3)), 'window(2)', 'blocked', WINDOW)],
            'attention: layers 1, 3: cudnn over causal; '
            'layers 2, 4: blocked over window(2) (cudnn supports Softmax over full, not window(2))',
        ),
        (
            [Choice(Caller((0, 2)), 'causal', 'dense', {}), Choice(Caller((1, 3)), 'window(2)', 'dense', {})],
            'attention: layers 1-4: dense over causal, window(2)',
        ),
        (
            [
                Choice(Caller((0,)), 'full', 'dense', {}),
                Choice(Caller((0, 1), 'decoder'), 'causal', 'dense', {}),
                Choice(Caller((0, 1), 'cross-attention'), 'full', 'dense', {}),
                Choice(Caller(), 'full', 'blocked', {}),
            ],
            'attention: encoder layer 1: dense over full; decoder layers 1-2: dense over causal; '
            'cross-attention of layers 1-2: dense over full; outside layers: blocked over full',
        ),
    ],
)
def test_the_line_names_layers_and_what_would_help(choices: list[Choice], line: str):
    assert attention_line(choices) == line


@pytest.mark.parametrize(
    'fields, advice',
    [
        ({}, 'cudnn has no support for packed segments'),
        ({'task': 'pretraining'}, 'cudnn would work with data.pairs=nsp'),
        ({'task': 'text_to_text', 'pairs.packed': True}, 'cudnn would work with pairs.packed=False'),
        (
            {'task': 'language_modelling', 'data.cut_at_documents': True, 'data.batches': 'streams'},
            'cudnn would work with data.cut_at_documents=False, data.batches=windows',
        ),
        (
            {'task': 'language_modelling', 'data.batches': 'streams', 'model.memory_length': 4},
            'cudnn has no support for packed segments',
        ),
    ],
)
def test_packed_rows_have_the_advice_of_their_task(fields: dict, advice: str):
    packed = {
        'cudnn': Refusal(
            'cudnn has no support for packed segments',
            ('support for packed segments',),
        )
    }
    values: dict = {'task': 'fine_tuning', 'data': {}, 'pairs': {}, 'model': {}}
    for name, value in fields.items():
        *group, field = name.split('.')
        (values[group[0]] if group else values)[field] = value
    parts = {
        'data': DataConfig(**values['data']),
        'pairs': PairsConfig(**values['pairs']),
        'model': ModelConfig(**values['model']),
    }
    config = types.SimpleNamespace(task=values['task'], **parts)
    line = attention_line([Choice(ALL, 'full', 'blocked', packed)], remedies_of_run(config))
    assert line == f'attention: layers 1-4: blocked over full ({advice})'


@pytest.mark.parametrize(
    'layers, text',
    [((0,), '1'), ((0, 1, 2), '1-3'), ((0, 1, 4), '1-2, 5'), ((0, 2, 4), '1, 3, 5'), ((1, 3, 5, 7), '2, 4, ..., 8')],
)
def test_layer_numbers_count_from_one(layers: tuple[int, ...], text: str):
    assert number_ranges(layers) == text
