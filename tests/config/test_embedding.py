"""The fields of the embeddings: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.config.embedding import EmbeddingConfig
from efficient_attention.errors import InputError

AXIAL = {'positions': 'axial', 'axial_shape': (4, 4), 'axial_widths': (64, 64)}


def test_the_embedding_is_as_wide_as_the_model_unless_it_is_factorised():
    assert EmbeddingConfig(width=48, heads=4).embedding_width == 48
    assert EmbeddingConfig(width=48, heads=4, embedding_width=16).embedding_width == 16


@pytest.mark.parametrize(
    'fields, limit',
    [({}, 512), ({'positions': 'sinusoidal'}, None), (AXIAL, 16), ({'positions': 'none', 'relative': 'alibi'}, None)],
)
def test_how_many_positions_there_are(fields: dict, limit: int | None):
    assert EmbeddingConfig(**fields).position_limit == limit
    assert EmbeddingConfig(positions='none', relative='tupe', max_length=7).position_limit == 7
    assert EmbeddingConfig(max_length=9, position_offset=2).position_limit == 7


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'vocab_size': 0}, 'model.vocab_size is 0; it must be at least 1'),
        ({'max_length': 0}, 'model.max_length is 0'),
        ({'embedding_width': -1}, 'model.embedding_width is -1'),
        ({'token_types': -1}, 'model.token_types is -1; it must be 0 or more'),
        ({'positions': 'sinusoidal', 'embedding_width': 5}, 'model.embedding_width is 5; it must be even'),
        ({'positions': 'rotary'}, "model.positions is 'rotary'; known: learned, sinusoidal, axial, none"),
        ({'relative': 'tupe'}, "model.positions is 'learned'; it must be 'none' with model.relative 'tupe'"),
        ({'axial_shape': (4, 4)}, r"model.axial_shape is \(4, 4\); it must be \(\) without model.positions 'axial'"),
        ({'axial_sum': True}, "model.axial_sum is True; it must be False without model.positions 'axial'"),
        ({'positions': 'axial'}, r'model.axial_shape is \(\); it must be one or more sizes of at least 1'),
        (AXIAL | {'axial_shape': (4, 0)}, r'model.axial_shape is \(4, 0\); it must be one or more sizes of at least 1'),
        (
            AXIAL | {'axial_widths': (64, 65)},
            r'model.axial_widths is \(64, 65\); it must be 2 widths .* sum is 128, the',
        ),
        (AXIAL | {'axial_widths': (128,)}, r'model.axial_widths is \(128,\); it must be 2 widths of at least 1'),
        (AXIAL | {'axial_sum': True}, r'model.axial_widths is \(64, 64\); it must be \(\) with model.axial_sum'),
        ({'position_offset': -1}, 'model.position_offset is -1; it must be 0 or more'),
        ({'position_offset': 512}, 'model.position_offset is 512; .* below model.max_length 512'),
        (
            {'position_offset': 2, 'positions': 'none', 'rotary': True},
            "is 2; it must be 0 without model.positions 'lea",
        ),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        EmbeddingConfig(**fields)
