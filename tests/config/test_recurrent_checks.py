"""What recurrent layers do not do is refused, and what they do not read must keep its value."""

from typing import Any

import pytest

from efficient_attention.config.nested_dicts import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError

LANGUAGE: dict[str, Any] = {'task': 'language_modelling'}
PAIRS: dict[str, Any] = {'task': 'text_to_text', 'pairs': {'train': 'toy:copy:9:1-5'}}


def run_of(run: dict[str, Any], **model: Any) -> RunConfig:
    groups = {name: value for name, value in model.items() if isinstance(value, dict)}
    fields = {name: value for name, value in model.items() if name not in groups}
    defaults = {'cell': 'gru', 'token_types': 0, 'attention': 'causal'}
    defaults |= {'decoder_layers': 2, 'attention': 'full'} if run is PAIRS else {}
    return from_dict(run | groups | {'model': defaults | fields}, RunConfig)


def test_recurrent_layers_serve_every_task():
    run_of(LANGUAGE)
    run_of(LANGUAGE, bidirectional=True, directions_apart=True)
    run_of({}, attention='full', bidirectional=True)
    run_of(PAIRS, heads=4, attention_dropout_rate=0.0, bidirectional=True, cross_attention='window(4)')


@pytest.mark.parametrize(
    'run, fields, said',
    [
        (LANGUAGE, {'heads': 4}, "model.heads is 4; it must be 2 with model.cell 'gru', whose layers do not read it"),
        (LANGUAGE, {'attention_dropout_rate': 0.0}, 'model.attention_dropout_rate is 0.0; it must be 0.1 with model.c'),
        (
            LANGUAGE,
            {'attention': 'causal & window(4)'},
            "model.attention is 'causal & window.4.'; it must be 'full' or",
        ),
        (
            LANGUAGE,
            {'head_width': 16},
            'model.head_width is 16; it must be 0, or model.width / model.heads, with model.',
        ),
        (
            LANGUAGE,
            {'attention_backend': 'dense'},
            "model.attention_backend is 'dense'; it must be 'auto' with model.c",
        ),
        (
            PAIRS,
            {'source_reading': 'state', 'initial_state': 'map', 'layers': 2, 'cross_attention': 'sparsemax(full)'},
            r"model.cross_attention is 'sparsemax\(full\)'; it must be 'full' with model.cell",
        ),
        (LANGUAGE, {'rotary': True}, 'model.rotary is True; it must be False with model.cell'),
        (LANGUAGE, {'relative': 'alibi'}, "model.relative is 'alibi'; it must be 'none' with model.cell"),
        (LANGUAGE, {'bidirectional': True}, 'model.bidirectional is True; it must be False in a language model'),
        (
            LANGUAGE,
            {'directions_apart': True},
            'model.directions_apart is True; it must be False without model.bidirect',
        ),
        (
            PAIRS,
            {'directions_apart': True},
            'model.directions_apart is True; the task text_to_text does not read it, so',
        ),
        (
            LANGUAGE,
            {'memory_length': 4, 'positions': 'none', 'rotary': False, 'data': {'batches': 'streams'}},
            "model.memory_length is 4; it must be 0, or 1 with model.cell 'gru': the state, which stands for",
        ),
        (
            LANGUAGE,
            {'memory_length': 1, 'bidirectional': True, 'directions_apart': True, 'positions': 'none'}
            | {'data': {'batches': 'streams'}},
            'model.memory_length is 1; it must be 0 with model.directions_apart',
        ),
        (
            LANGUAGE,
            {'memory_length': 1, 'same_length': True, 'positions': 'none', 'data': {'batches': 'streams'}},
            "model.same_length is True; it must be False with model.cell 'gru', whose state tells no tokens apart",
        ),
        (LANGUAGE, {'mesh': {'sequence': 2}}, "mesh.sequence is 2; layers of model.cell 'gru' read rows position by"),
        (
            PAIRS,
            {'decoder_attention': 'causal & window(4)'},
            'model.decoder_attention is .causal & window.4..; it must',
        ),
    ],
)
def test_what_they_do_not_do_is_refused(run: dict, fields: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}'):
        run_of(run, **fields)
