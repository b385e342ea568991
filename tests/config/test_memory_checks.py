"""Which attention, positions and stack can go on with the memory of a text."""

import pytest

from efficient_attention.config.memory_checks import check_compression, check_keeps_memory, check_memory, check_rate
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError

MEMORY = {'positions': 'none', 'rotary': True, 'memory_length': 8, 'attention': 'causal'}
XL = {'positions': 'none', 'relative': 'transformer_xl'}
FAVOR = {'attention': 'favor(8, causal=True)', 'attention_dropout_rate': 0.0}


@pytest.mark.parametrize('attention', ['causal', 'causal & window(3)', 'causal & strided(4)', 'causal & window(3, 2)'])
def test_what_goes_by_distance_keeps_memory(attention: str):
    check_memory(ModelConfig(**MEMORY | {'attention': attention}))
    check_keeps_memory(ModelConfig(**MEMORY | {'attention': attention, 'memory_length': 0}))


@pytest.mark.parametrize(
    'fields, message',
    [
        (FAVOR, 'keeps no memory: use causal'),
        ({'attention': 'sparse_fixed(8, 2)'}, 'keeps no memory: use causal'),
        ({'stack': 'reversible', 'norm': 'pre'}, r'reversible stack \(model\.stack\) keeps no memory'),
        ({'positions': 'learned'}, 'positions must go by distance'),
    ],
)
def test_what_keeps_no_memory_is_named(fields: dict, message: str):
    with pytest.raises(InputError, match=rf'^model\.memory_length is 8; .*{message}'):
        check_memory(ModelConfig(**MEMORY | fields))
    with pytest.raises(InputError, match=message):
        check_keeps_memory(ModelConfig(**MEMORY | fields | {'memory_length': 0}))


@pytest.mark.parametrize('attention', ['causal', 'full', 'causal & window(5)'])
def test_distances_of_transformer_xl_need_one_run_of_keys(attention: str):
    check_memory(ModelConfig(**XL, attention=attention))


@pytest.mark.parametrize('attention', ['causal & strided(4)', 'causal & window(3, 2)', 'causal | window(9)'])
def test_keys_with_gaps_have_no_distances_of_transformer_xl(attention: str):
    with pytest.raises(InputError, match=r"^model\.relative is 'transformer_xl'; .* must be causal or"):
        check_memory(ModelConfig(**XL, attention=attention))


SLOTS = MEMORY | {'compression': 'mean', 'compressed_length': 4, 'compression_rate': 3}


def test_compression_needs_a_memory_that_tokens_leave():
    check_memory(ModelConfig(**SLOTS))
    check_memory(ModelConfig(**SLOTS | {'memory_length': 0, 'compressed_length': 0}))  # as an evaluation may have it
    with pytest.raises(InputError, match='^model.compressed_length is 4; it must be 0 without model.memory_length'):
        check_memory(ModelConfig(**SLOTS | {'memory_length': 0}))
    with pytest.raises(InputError, match="^model.compression is 'mean'; it must be 'none' with model.cell 'gru'"):
        check_memory(ModelConfig(**SLOTS | {'memory_length': 1, 'rotary': False, 'cell': 'gru'}))


def test_segments_divide_by_the_rate_of_compression():
    lengths = {'data.length': 12, 'eval.context': 7}
    with pytest.raises(InputError, match='^eval.context is 7; it must be a multiple of model.compression_rate 3'):
        check_compression(ModelConfig(**SLOTS), lengths)
    check_compression(ModelConfig(**SLOTS), {'data.length': 12})
    check_compression(ModelConfig(**MEMORY), lengths)
    without = ModelConfig(**SLOTS | {'compressed_length': 0})
    check_rate(without, lengths)
    with pytest.raises(InputError, match="^model.compressed_length is 0; it must be above 0 with model.compression 'm"):
        check_compression(without, {'data.length': 12})
