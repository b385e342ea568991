"""Whether the ids of a batch are of the model's vocabulary.

On a device nobody would notice one that is not: it is read as another token, or makes a loss that is not a number.
"""

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.tasks.task import HostBatch

ID_ARRAYS = ('tokens', 'targets', 'masked_tokens', 'source')  # that a model looks up, or predicts


def check_ids(batch: HostBatch, model: ModelConfig) -> None:
    """Raises InputError where an id has no row in the model's table for it; names the array, the row and the id."""
    for name in ID_ARRAYS:
        ids, field = batch.get(name), 'vocab_size'
        if name != 'source' and model.target_vocab_size:
            field = 'target_vocab_size'
        size = getattr(model, field)
        if ids is not None and ids.size and (ids.min() < 0 or ids.max() >= size):
            wrong = (ids < 0) | (ids >= size)
            row = int(wrong.reshape(len(ids), -1).any(axis=1).argmax())
            raise InputError(
                f'row {row} of a batch has the token id {ids[wrong][0]} in {name!r}; ids must be from 0 to {size - 1} '
                f'(model.{field})'
            )
