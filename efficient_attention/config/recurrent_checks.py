"""Checks that a run with recurrent layers sets no field that they do not read."""

from typing import Any

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError, require

# Fields of attention to the row itself, and fields that cross-attention reads, too: what they must be without it.
OF_SELF_ATTENTION = {'shared_qk': False, 'rotary': False, 'relative': 'none', 'global_tokens': 0}
OF_ATTENTION: dict[str, Any] = {
    'heads': 2,
    'attention_bias': True,
    'scaled_logits': True,
    'attention_dropout_rate': 0.1,
}
OF_ATTENTION |= {'score': 'dot', 'location_length': 512, 'attention_backend': 'auto'}
OF_ATTENTION |= {'cross_attention': 'full', 'reinforce_weight': 1.0}


def check_recurrent(model: ModelConfig, mesh: MeshConfig) -> None:
    """Raises InputError where layers are recurrent and a field asks for what they do not do."""
    fits = model.bidirectional or not model.directions_apart
    require(fits, 'model.directions_apart', True, 'False without model.bidirectional')
    if model.cell == 'none':
        return
    reason = f'with model.cell {model.cell!r}, whose layers do not read it'
    for field, text in (('attention', model.attention), ('decoder_attention', model.decoder_attention)):
        require(text in ('full', 'causal'), f'model.{field}', text, f"'full' or 'causal' {reason}")
    has_attention = model.decoder_layers > 0 and model.source_reading != 'state'
    for field, value in (OF_SELF_ATTENTION | ({} if has_attention else OF_ATTENTION)).items():
        require(getattr(model, field) == value, f'model.{field}', getattr(model, field), f'{value!r} {reason}')
    if not has_attention:
        allowed = f'0, or model.width / model.heads, {reason}'
        require(model.head_width == model.width // model.heads, 'model.head_width', model.head_width, allowed)
    has_memory = model.directions_apart and model.memory_length > 0
    allowed = '0 with model.directions_apart: what one direction reads has not been there yet'
    require(not has_memory, 'model.memory_length', model.memory_length, allowed)
    if mesh.sequence > 1:
        raise InputError(
            f'mesh.sequence is {mesh.sequence}; layers of model.cell {model.cell!r} read rows position by position'
        )
