"""Makes batches of random examples, for tests of everything after the input pipeline."""

import jax
import numpy as np
from jax import Array


def random_batch(*, rows: int, length: int, vocabulary: int, predictions: int, seed: int = 0) -> dict[str, Array]:
    """Returns a batch with sentence pairs and padding; all predictions of rows 3, 7, ... count, and one of each other
    row.

    So micro-batches (every second or fourth row) and shards (neighbouring rows) differ much in their weights.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 2, length + 1, rows)
    real = np.arange(length) < lengths[:, None]
    counts = np.where(np.arange(rows) % 4 == 3, predictions, 1)
    batch = {
        'tokens': rng.integers(0, vocabulary, (rows, length)) * real,
        'segments': real,
        'token_types': (np.arange(length) >= lengths[:, None] // 2) & real,
        'positions': np.broadcast_to(np.arange(length), (rows, length)),
        'masked_positions': np.stack([rng.permutation(length)[:predictions] for _ in range(rows)]),
        'masked_tokens': rng.integers(0, vocabulary, (rows, predictions)),
        'pair_labels': rng.integers(0, 2, rows),
    }
    weights = {'masked_weights': np.arange(predictions) < counts[:, None], 'pair_weights': np.arange(rows) % 3 > 0}
    arrays = {name: array.astype(np.int32) for name, array in batch.items()}
    arrays |= {name: array.astype(np.float32) for name, array in weights.items()}
    return jax.device_put(arrays)
