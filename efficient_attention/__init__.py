"""Transformers that are cheap in time, memory and parameters, in JAX and Flax NNX.

Dimension letters, used in array names, einsum strings and annotations:

    B batch rows            D model width            N layers
    L query positions       F feed-forward width     S tile size, positions
    M key positions         V vocabulary size        R random features
    H query heads           E embedding width        T hash rounds
    G key and value heads   P predicted positions    C classes
    K head width            U units of a recurrent state

A lower-case letter is local to its file, such as the positions within a chunk. The letter b stands for B or 1. The
letter h counts the H / G query heads that share a key head. The file's docstring names every other local letter. P also
counts the distances of a relative term.

Names without letters: scalars, random keys (one, or one per row) and arrays of any shape ('...' in their annotation).
Arguments of `attend` and `Relative` also keep their names: query [B, L, H, K], key and value [B, M, G, K], bias,
segments, positions, table, additive [H, K] and centres [B, L, H].
"""

import importlib
import importlib.util
from typing import Any

from efficient_attention.errors import missing_extra_error

__version__ = '0.1.0'

# Public name -> module that defines it. A module is imported on first use.
# Imports are lazy, so `import efficient_attention` itself imports no other package, such as JAX.
# __init__.pyi has the same names for type checkers and editors.
_PUBLIC = {
    'attend': 'attention.attend',
    'attention_weights': 'attention.attend',
    'draw_operands': 'attention.draw_operands',
    'Softmax': 'attention.softmax.definition',
    'LSH': 'attention.lsh.definition',
    'FAVOR': 'attention.favor.definition',
    'Linear': 'attention.linear.definition',
    'Sparsemax': 'attention.sparsemax.definition',
    'Entmax': 'attention.entmax.definition',
    'Hard': 'attention.hard.definition',
    'LocalP': 'attention.local_p.definition',
    'Linformer': 'attention.linformer.definition',
    'Nystrom': 'attention.nystrom.definition',
    'Induced': 'attention.induced.definition',
    'Routing': 'attention.routing.definition',
    'Sinkhorn': 'attention.sinkhorn.definition',
    'Synthesizer': 'attention.synthesizer.definition',
    'Lengths': 'attention.request',
    'Relative': 'attention.relative',
    'Mechanism': 'attention.mechanism',
    'PatternAttention': 'attention.logits.definition',
    'Implementation': 'attention.implementation',
    'make_pattern_implementation': 'attention.logits.implementation_factory',
    'add_mechanism': 'attention.parsing',
    'parse_mechanism': 'attention.parsing',
    'parse_pattern': 'attention.parsing',
    'Full': 'attention.patterns',
    'Causal': 'attention.patterns',
    'Prefix': 'attention.patterns',
    'Window': 'attention.patterns',
    'Block': 'attention.patterns',
    'Strided': 'attention.patterns',
    'Summary': 'attention.patterns',
    'GlobalTokens': 'attention.patterns',
    'RandomTiles': 'attention.patterns',
    'ListedTiles': 'attention.patterns',
    'PerHead': 'attention.patterns',
    'dense_mask': 'attention.patterns',
    'longformer': 'attention.patterns.presets',
    'bigbird': 'attention.patterns.presets',
    'sparse_fixed': 'attention.patterns.presets',
    'sparse_strided': 'attention.patterns.presets',
    'Encoder': 'models.encoder',
    'Decoder': 'models.decoder',
    'EncoderDecoder': 'models.encoder_decoder',
    'ModelConfig': 'config.model',
    'InputError': 'errors',
    'load': 'inference.load',
    'attention_page': 'inspection.attention_page',
    'open_scorer': 'scoring.open_scorer',
    'pipeline': 'inference.pipeline',
    'train': 'training.from_python',
    'evaluate': 'training.from_python',
}
__all__ = sorted(_PUBLIC)
# Import names of the packages that pyproject.toml lists under the extra `train`.
_TRAIN = frozenset({'PIL', 'absl', 'array_record', 'google', 'google_crc32c', 'grain', 'jinja2', 'matplotlib'})
_TRAIN |= {'ml_collections', 'mwparserfromhell', 'optax', 'orbax', 'pyarrow', 'rich', 'sacrebleu', 'safetensors'}
_TRAIN |= {'scipy', 'sentencepiece', 'tensorboardX', 'tokenizers'}
_NEED_TRAIN = frozenset(
    {'evaluate', 'load', 'open_scorer', 'pipeline', 'train'}
)  # public names whose modules import these packages


def __getattr__(name: str) -> Any:
    """Returns the public object with this name, and imports its module.

    Raises:
        AttributeError: there is no such public name.
        MissingExtraError: a package of the extra `train` is not installed.
    """
    if name not in _PUBLIC:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}; public names: {", ".join(__all__)}')
    try:
        return getattr(importlib.import_module(f'{__name__}.{_PUBLIC[name]}'), name)
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] not in _TRAIN:
            raise
        raise missing_extra_error(f'ea.{name}', 'train', error) from None


def __dir__() -> list[str]:
    """Returns the public names, without names whose packages are missing: `help` reads each listed attribute."""
    is_complete = all(importlib.util.find_spec(package) for package in _TRAIN)
    return [*(name for name in __all__ if is_complete or name not in _NEED_TRAIN), '__version__']
