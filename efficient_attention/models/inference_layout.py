"""A model's parameters laid out for inference: those of separate layers as separate arrays.

Training keeps them stacked for the scan over layers, whose program does not grow with depth, and so do checkpoints. But
every call of a scan copies each layer's parameters out of the stacked arrays first, which takes longer than the layers
themselves where a call has few rows.
"""

from typing import Any

from flax import nnx

from efficient_attention.models.stack import Stack


def for_inference(graph: nnx.GraphDef, params: Any) -> tuple[nnx.GraphDef, Any]:
    """The same model with an array for each layer, whose stacks walk their layers without a scan.

    The result is the same up to rounding, and the program grows with depth. A layer that all share needs no copy and
    stays in its scan; of groups of layers, each group has its arrays once. The new arrays are copies (views where
    `params` are NumPy's), so let go of `params` afterwards.

    Args:
        graph: of any model that has stacks.
        params: a pure dict, as checkpoints hold them; one that is laid out so already is returned as it is.
    """
    model = nnx.merge(graph, params)
    for stack in [module for _, module in nnx.iter_graph(model) if isinstance(module, Stack)]:
        if stack.config.is_stacked and not stack.is_separate:
            stack.lay_out_separately()
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)
