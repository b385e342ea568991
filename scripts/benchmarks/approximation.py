"""Measures how well attention mechanisms approximate full softmax attention in the layers of a trained encoder.

    python scripts/benchmarks/approximation.py --model checkpoints/minilm 'nystrom(64)' 'favor(256)' 'window(64)'

Queries, keys and values come from every layer of an unchanged trained encoder. The encoder reads the first documents of
--source that fill a row. The error of a layer is ||mechanism - full|| / ||full||, over the outputs of attention.
`--ranks` adds the error of the best weights of a given rank, from the singular values of each head's weights. This is
the least error that this number of compressed keys can reach. Learned arrays of a mechanism are freshly initialised.
The last line of output is one JSON object.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from jax import Array

import efficient_attention as ea
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_integers, define_length, define_model
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import pretrained_encoder
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.encoder import Encoder

Layers = tuple[Array, Array, Array]  # queries, keys and values of N layers, each [N, B, L, H, K]
Attend = Callable[..., Array]


def main() -> None:
    """Reads the flags, measures the error of each mechanism, and prints one line per mechanism."""
    options = define_flags()
    texts = parse_flags(sys.argv, ('model',), options=options, words='MECHANISM...')
    mechanisms = {text: ea.parse_mechanism(text) for text in texts}
    layers = collect_qkv(options.model, options.source, options.rows, options.length)
    found = mechanism_errors(layers, mechanisms) | low_rank_errors(layers, options.ranks)
    names = list(next(iter(found.values())))
    print(' '.join(f'{name:>9}' for name in names))
    for text, errors in found.items():
        print(' '.join(f'{errors[name]:9.4f}' for name in names) + f'  {text}')
    print(json.dumps(found))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_length(512, 'Tokens of a row.', options)
    flags.DEFINE_integer('rows', 8, 'Number of documents.', flag_values=options, lower_bound=1)
    flags.DEFINE_string('source', 'stdlib', 'As data.source in a config.', flag_values=options)
    define_integers('ranks', (), 'Ranks for which to print the error of the best weights', options)
    return options


def collect_qkv(model: Path, source: str, rows: int, length: int) -> Layers:
    """Returns the queries, keys and values of all layers of a trained encoder that reads documents of equal length.

    Args:
        model: folder of the trained encoder.
        source: source of the documents, as `data.source` in a config.
        rows: number of documents.
        length: tokens to which each document is cut; shorter documents are skipped.

    Raises:
        InputError: the model or source does not exist, too few documents are long enough, or layers have no attention.
    """
    pretrained = open_pretrained(model)
    if pretrained.tokenizer is None:
        raise InputError(f'{model}: no tokenizer there')
    for field, limit in pretrained.model.position_limits_by_field.items():
        if length > limit:
            raise InputError(f'--length is {length}; {model} has {limit} positions ({field})')
    encoder = text_encoder(pretrained.tokenizer, lowercase=pretrained.lowercase)
    tokens_BL = []
    for document in open_source(source).documents():
        ids = encoder.row(*encoder.encode([document])).ids
        if len(ids) >= length:
            tokens_BL.append(ids[:length])
        if len(tokens_BL) == rows:
            break
    else:
        raise InputError(f'--source {source}: {len(tokens_BL)} documents have {length} tokens; --rows asks for {rows}')
    module = pretrained_encoder(pretrained)
    ids_BL = jnp.array(tokens_BL, jnp.int32)
    types_BL = jnp.zeros_like(ids_BL) if pretrained.model.token_types > 1 else None
    layers = qkv_of_layers(module, ids_BL, types_BL)
    if layers is None:
        raise InputError(f'{model}: its layers have no attention of queries, keys and values')
    return layers


@nnx.jit
def qkv_of_layers(module: Encoder, ids_BL: Array, types_BL: Array | None) -> Layers | None:
    """Returns the queries, keys and values of all layers of an encoder; None if the layers have no attention."""
    inside = module.with_hidden_states(ids_BL, jnp.ones_like(ids_BL), token_types_BL=types_BL)[1].attention
    if inside is None or inside.value_BMHK is None:
        return None
    return inside.query_BLHK, inside.key_BMHK, inside.value_BMHK


def mechanism_errors(layers: Layers, mechanisms: dict[str, Mechanism]) -> dict[str, dict[str, float]]:
    """Returns each mechanism's relative error against full attention, per layer and on average."""
    full = attention_outputs(ea.Softmax(ea.Full()), layers)
    return {text: relative_errors(attention_outputs(mechanism, layers), full) for text, mechanism in mechanisms.items()}


def attention_outputs(mechanism: Mechanism, layers: Layers) -> np.ndarray:
    """Returns the outputs that a mechanism computes from each layer's queries, keys and values, [N, B, L, H, K]."""
    heads, width = layers[0].shape[-2:]

    @jax.jit
    def attend(rng: Array, *layer: Array) -> Array:
        rngs = jax.random.split(rng)
        options: dict[str, Any] = {'rng': rngs[0]} if mechanism.randomness.always else {}
        options['learned'] = draw_operands(mechanism, heads, width, rngs[1]) or None
        return ea.attend(*layer, mechanism, **options)

    return np.stack([attend(jax.random.key(0), *layer) for layer in zip(*layers, strict=True)])


def low_rank_errors(layers: Layers, ranks: Sequence[int]) -> dict[str, dict[str, float]]:
    """Returns the relative error of the best low-rank approximation of the attention weights, for each rank."""
    full = ea.Softmax(ea.Full())
    outputs: dict[int, list[np.ndarray]] = {rank: [] for rank in ranks}
    wanted = []
    weights_of = jax.jit(lambda q_BLHK, k_BLHK: ea.attention_weights(q_BLHK, k_BLHK, full))
    for q_BLHK, k_BLHK, v_BLHK in zip(*layers, strict=True) if ranks else ():
        weights_BHLM = np.asarray(weights_of(q_BLHK, k_BLHK))
        values_BHMK = np.asarray(v_BLHK).transpose(0, 2, 1, 3)
        u_BHLR, s_BHR, v_BHRM = np.linalg.svd(weights_BHLM, full_matrices=False)
        wanted.append(weights_BHLM @ values_BHMK)
        for rank in ranks:
            kept_BHRK = s_BHR[..., :rank, None] * (v_BHRM[..., :rank, :] @ values_BHMK)
            outputs[rank].append(u_BHLR[..., :rank] @ kept_BHRK)
    return {
        f'best of rank {rank}': relative_errors(np.stack(found), np.stack(wanted)) for rank, found in outputs.items()
    }


def relative_errors(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Returns the relative error of arrays whose first axis is the layer: one error per layer, and their mean."""
    axes = tuple(range(1, found.ndim))
    errors_N = np.sqrt(np.square(found - wanted).sum(axis=axes) / np.square(wanted).sum(axis=axes))
    named = {f'layer {number}': float(error) for number, error in enumerate(errors_N, 1)}
    return named | {'mean': float(errors_N.mean())}


if __name__ == '__main__':
    run_command(main)
