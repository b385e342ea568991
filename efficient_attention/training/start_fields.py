"""Checks that the model of a run and the model that it starts from compute the same function of their parameters."""

from pathlib import Path

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError

# Model fields with which the same parameters compute another function, although most of them change no shape.
# The list lacks fields that users change on purpose, such as `attention`, and fields that only change shapes.
# It also lacks fields that only training reads, such as the dropout rates.
FIXED_BY_START = (
    *('heads', 'head_width', 'attention_bias', 'scaled_logits', 'rotary', 'score'),
    *('relative', 'relative_buckets', 'relative_max_distance', 'relative_shared_biases', 'relative_cls_reset'),
    *('feed_forward', 'feed_forward_bias', 'feed_forward_gate', 'activation'),
    *('cell', 'bidirectional', 'source_reading', 'input_feeding', 'initial_state', 'readout'),
    *('norm', 'norm_kind', 'norm_epsilon', 'residual', 'embedding_norm', 'embedding_scale', 'output_scale'),
    *('positions', 'position_offset', 'layer_groups', 'inner_layers', 'stack'),
)


def check_same_function(start: Path, theirs: ModelConfig, ours: ModelConfig) -> None:
    """Raises InputError if the model of a run differs in a field of `FIXED_BY_START` from the model that it starts
    from; the message names every such field with both values.

    Args:
        start: the checkpoint's folder.
        theirs: the checkpoint's model.
        ours: the model of the run.
    """
    different = [name for name in FIXED_BY_START if getattr(theirs, name) != getattr(ours, name)]
    if not different:
        return
    values = ', '.join(f'model.{name} {getattr(theirs, name)!r}, not {getattr(ours, name)!r}' for name in different)
    flags = ' '.join(f'--config.model.{name}={getattr(theirs, name)}' for name in different)
    raise InputError(f'train.start_from {start} was trained with {values}; use its values: {flags}')
