"""How a decoder reads its source: fields out of range, and choices that do not fit one another, are named."""

from typing import Any

import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError

PAIR: dict[str, Any] = {'cell': 'gru', 'token_types': 0, 'layers': 2, 'decoder_layers': 2}


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'source_reading': 'top'}, "source_reading is 'top'; known: layers, state, before, after"),
        ({'initial_state': 'ones'}, "initial_state is 'ones'; known: zeros, copy, map, map_backward"),
        ({'readout': 'max'}, "readout is 'max'; known: none, maxout"),
        ({'source_reading': 'after', 'cell': 'none'}, "source_reading is 'after'; it must be 'layers' without mo"),
        ({'initial_state': 'copy', 'cell': 'none'}, "initial_state is 'copy'; it must be 'zeros' without model.cell"),
        ({'input_feeding': True, 'source_reading': 'before'}, 'input_feeding is True; it must be False with mode'),
        ({'readout': 'maxout', 'source_reading': 'after'}, "readout is 'maxout'; it must be 'none' with model.so"),
        ({'source_reading': 'state'}, "initial_state is 'zeros'; it must be copy, map or map_backward with model"),
        ({'initial_state': 'copy', 'decoder_layers': 1}, 'decoder_layers is 1; it must be 2, model.layers, with'),
        ({'initial_state': 'copy', 'bidirectional': True}, "initial_state is 'copy'; it must be zeros, map or ma"),
        ({'initial_state': 'map_backward'}, "initial_state is 'map_backward'; it must be zeros, copy or map with"),
        ({'source_reading': 'before', 'state_width': 64}, 'state_width is 64; it must be 0 or model.width with m'),
        ({'source_reading': 'before', 'recurrent_chunk': 8}, 'recurrent_chunk is 8; it must be 0 where the decod'),
        (
            {'source_reading': 'after', 'stack': 'reversible', 'norm': 'pre'},
            "stack is 'reversible'; it must be 'plain' with model.source_reading or model.initial_state",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^model.{said}'):
        ModelConfig(**PAIR | fields)


def test_the_papers_choices_are_taken():
    bahdanau = {'source_reading': 'before', 'bidirectional': True, 'initial_state': 'map_backward', 'readout': 'maxout'}
    assert ModelConfig(**PAIR | bahdanau).decoder.is_stepwise
    luong = {'source_reading': 'after', 'input_feeding': True, 'initial_state': 'copy'}
    assert ModelConfig(**PAIR | luong).decoder.is_stepwise
    assert not ModelConfig(**PAIR | luong | {'input_feeding': False}).decoder.is_stepwise
