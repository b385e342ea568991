"""One layer: a list of sub-layers, each with its residual, norm and dropout."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import spread
from efficient_attention.attention.dropout import dropout
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention, AttentionOperands
from efficient_attention.modules.compression import compress, held, make_compressor, reconstruction_error
from efficient_attention.modules.constant import Constant
from efficient_attention.modules.context import CompressedLayerMemory, Context, LayerMemory, fold
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.parameters import make_norm
from efficient_attention.modules.recurrent import Recurrent
from efficient_attention.modules.sub_layer import MEMORY, OTHER, Streams, SubLayer, advance, sub_layers_of
from efficient_attention.modules.told import RECONSTRUCTION, Told
from efficient_attention.recurrence.recur import State


class Layer(nnx.Module):
    """Sub-layers one after another, [B, L, D] -> [B, L, D]: by default those of `sub_layers_of`.

    'post': x = norm(x + dropout(f(x))) as in BERT; 'pre': x = x + dropout(f(norm(x))); 'none': without the norm.
    Without `residual` the sum's first x is left out.
    """

    def __init__(self, config: LayerConfig, *, sub_layers: tuple[SubLayer, ...] | None = None, rngs: nnx.Rngs) -> None:
        self.config, self.sub_layers = config, sub_layers or sub_layers_of(config)
        for sub in self.sub_layers:
            setattr(self, sub.name, make_module(config, sub, rngs))
            if config.norm != 'none':
                setattr(self, sub.norm, make_norm(config, config.width, rngs))
        self.compressor = make_compressor(config, rngs)

    def __call__(
        self,
        x_BLD: Array,
        segments_BL: Array,
        positions_BL: Array,
        *,
        mechanism: Mechanism | None = None,
        **context: Any,
    ) -> Array:
        """The layer's output; `mechanism` is its self-attention's, by default the config's first; see `Context`."""
        return self.run((x_BLD,), Context(segments_BL, positions_BL, **context), mechanism)[0][0]

    def run(
        self, streams: Streams, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[Streams, dict[str, Any]]:
        """The streams after all sub-layers, and by name the queries and keys of attentions and the states of cells."""
        operands: dict[str, Any] = {}
        for sub in self.sub_layers:
            apply = functools.partial(self.apply, sub, context, mechanism)
            streams, used = self.advance(sub, streams, apply, context.rng)
            operands |= {} if used is None else {sub.name: used}
        return streams, operands

    def advance(
        self, sub: SubLayer, streams: Streams, apply: Callable[[Array], tuple[Array, Any]], rng: Array | None = None
    ) -> tuple[Streams, Any]:
        """The streams after a sub-layer, and the second value that `apply` returns; arguments as of `branch`.

        A 'post' layer normalises the sum of the input and what the sub-layer adds.
        """
        norm = getattr(self, sub.norm) if self.config.norm == 'post' else None
        added = functools.partial(self.branch, sub, apply=apply, rng=rng)
        return advance(streams, added, norm, has_sum=self.config.residual)

    def branch(
        self, sub: SubLayer, x_BLD: Array, apply: Callable[[Array], tuple[Array, Any]], rng: Array | None = None
    ) -> tuple[Array, Any]:
        """What a sub-layer adds to the residual sum: dropout(f(x)), in a 'pre' layer dropout(f(norm(x))).

        `apply` returns f of its argument and a second value, which is returned as well.
        """
        x_BLD = getattr(self, sub.norm)(x_BLD) if self.config.norm == 'pre' else x_BLD
        out_BLD, handed_out = apply(spread(x_BLD, 'BLD'))
        return spread(dropout(out_BLD, self.config.dropout_rate, fold(rng, sub.dropout)), 'BLD'), handed_out

    def added(self, sub: SubLayer, x_BLD: Array, context: Context, mechanism: Mechanism | None = None) -> Array:
        """What a sub-layer adds to the residual sum, as in `run`."""
        return self.branch(sub, x_BLD, functools.partial(self.apply, sub, context, mechanism), context.rng)[0]

    def apply(
        self, sub: SubLayer, context: Context, mechanism: Mechanism | None, x_BLD: Array
    ) -> tuple[Array, AttentionOperands | tuple[State, ...] | None]:
        """A sub-layer's module on what `branch` has normalised, and its queries and keys, or a cell's states."""
        module = getattr(self, sub.name)
        rng = fold(context.rng, sub.inner_dropout)
        if sub.is_recurrent:
            rng = rng if context.state_rng is None else fold(context.state_rng, sub.inner_dropout)
            return module.run(x_BLD, context.segments_BL, context.memory, rng=rng, product_BLX=context.product_BLX)
        if not sub.keys_from:
            return module(x_BLD, rng=rng), None
        if OTHER in sub.keys_from:
            return module.cross(x_BLD, context._replace(rng=rng), context.other(sub))
        read = context.memory if MEMORY in sub.keys_from else None
        read = read.joined() if isinstance(read, CompressedLayerMemory) else read
        assert read is None or isinstance(read, LayerMemory)
        memory = None if read is None else self.normed_slots(sub, read)
        return module.self_attention(x_BLD, context._replace(rng=rng, memory=memory), mechanism)

    def remembered(
        self, x_BLD: Array, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[tuple[Array, Array | None], Told]:
        """What the memory gets of a segment with this input, and what the layer tells of it.

        These are the input, and what the tokens are compressed to that leave the memory for it, [B, L / c, D]; None
        where they are forgotten. A learned compressor is told about by 'reconstruction', see `reconstruction_error`,
        whose gradient reaches it and nothing else.
        """
        memory = context.memory
        if not isinstance(memory, CompressedLayerMemory):
            return (x_BLD, None), {}
        read_BLD, memory = jax.lax.stop_gradient((x_BLD, memory))
        leaving = memory.leaving(read_BLD, context.segments_BL)
        compressed = compress(self.config, self.compressor, leaving)
        if not self.config.reconstruction_weight:
            return (x_BLD, compressed.states_BMD), {}
        (sub,), layer = (sub for sub in self.sub_layers if MEMORY in sub.keys_from), held(self)
        queries = LayerMemory(read_BLD, context.segments_BL)
        read = (layer.normed_slots(sub, slots) for slots in (queries, leaving, compressed))
        error = reconstruction_error(getattr(layer, sub.name), mechanism or self.config.mechanisms[0], *read)
        return (x_BLD, compressed.states_BMD), {RECONSTRUCTION: error}

    def input_product(self, x_BLD: Array) -> Array:
        """The product [B, L, g U] of the first sub-layer, a recurrent one, with the input of the layer."""
        sub = self.sub_layers[0]
        x_BLD = getattr(self, sub.norm)(x_BLD) if self.config.norm == 'pre' else x_BLD
        return getattr(self, sub.name).input_product(x_BLD)

    def normed_slots(self, sub: SubLayer, slots: LayerMemory) -> LayerMemory:
        """The slots of a memory as the sub-layer reads them: normalised like its input."""
        if self.config.norm != 'pre':
            return slots
        return slots._replace(states_BMD=getattr(self, sub.norm)(slots.states_BMD))


def make_module(config: LayerConfig, sub: SubLayer, rngs: nnx.Rngs) -> nnx.Module:
    """The module of a sub-layer."""
    if sub.is_constant:
        return Constant(config)
    if sub.is_recurrent:
        return Recurrent(config, rngs=rngs)
    if sub.keys_from:
        return Attention(config, is_cross=OTHER in sub.keys_from, rngs=rngs)
    return FeedForward(config, rngs=rngs)
