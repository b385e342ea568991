"""The cost of routing attention: tokens against centroids, and two products over the pairs of clusters and windows."""

from efficient_attention.attention.routing.definition import Routing
from efficient_attention.attention.routing.windows import cut_windows


def multiply_adds(mechanism: Routing, length: int, heads: int, width: int) -> int:
    """Of one row, without the centroids' statistics, which training alone takes."""
    size, routed = min(mechanism.size, length), heads - mechanism.local_heads
    in_clusters = 2 * mechanism.clusters * width * (length + size**2)
    cut = cut_windows(length, mechanism.window, causal=mechanism.causal)
    in_windows = 2 * cut.blocks * cut.size**2 * cut.read * width
    return routed * in_clusters + mechanism.local_heads * in_windows
