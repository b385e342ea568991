"""Changes a model's parameters to a layout for faster inference: separate arrays per layer instead of stacked arrays.

Training and checkpoints stack the layers' parameters for a scan, so that program size does not depend on depth. But
each call of a scan copies every layer's parameters out of the stacked arrays. For calls with few rows, this takes
longer than the layers themselves.
"""

from typing import Any

from flax import nnx

from efficient_attention.models.layer_stack import Stack


def lay_out_for_inference(graph: nnx.GraphDef, params: Any) -> tuple[nnx.GraphDef, Any]:
    """Returns the same model with separate parameter arrays for each layer, so that its stacks run their layers without
    a scan.

    Results are equal up to rounding, and program size grows with depth. A layer shared by all is not copied and stays
    in its scan. If groups of layers share parameters, each group has one set of arrays. The new arrays are copies
    (views if `params` are NumPy arrays), so release `params` afterwards.

    Args:
        graph: the graph definition of any model with layer stacks.
        params: a pure dict, as in checkpoints; returned unchanged if the model already has this layout.
    """
    model = nnx.merge(graph, params)
    for stack in [module for _, module in nnx.iter_graph(model) if isinstance(module, Stack)]:
        if stack.config.is_stacked and not stack.is_separate:
            stack.unstack_layers()
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)
