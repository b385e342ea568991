"""Which picture of a model should one believe? Compares scores of tokens with leaving each token out.

The scores are raw attention weights, attention rollout and attention flow (Abnar and Zuidema 2020, arXiv 2005.00928),
or gradients. The measure is Spearman's rank correlation with the change of the output when a token is replaced.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy

CAPACITY = 10**6  # integer capacity of a weight of 1, because SciPy's maximum flow needs integers
Output = Callable[[np.ndarray], np.ndarray]  # from token ids [rows, L] to an output per row, [rows] or [rows, D]


def raw_weights(weights_NLL: np.ndarray, target: int) -> np.ndarray:
    """Returns the last layer's weights from the target to each token, [L].

    `weights_NLL` are the weights of each layer, the means over its heads.
    """
    return weights_NLL[-1, target]


def with_residual(weights_NLL: np.ndarray) -> np.ndarray:
    """Returns 0.5 A + 0.5 I with rows that sum to 1: the residual connection keeps half of each token."""
    mixed_NLL = 0.5 * weights_NLL + 0.5 * np.eye(weights_NLL.shape[-1])
    return mixed_NLL / mixed_NLL.sum(-1, keepdims=True)


def attention_rollout(weights_NLL: np.ndarray, target: int) -> np.ndarray:
    """Returns how much of the target's last hidden state comes from each input token by rollout, [L].

    The layers' matrices with residual connections are multiplied (Abnar and Zuidema 2020, section 3).
    """
    found_L = np.eye(weights_NLL.shape[-1])[target]
    for mixed_LL in with_residual(weights_NLL)[::-1]:
        found_L = found_L @ mixed_LL
    return found_L


def attention_flow(weights_NLL: np.ndarray, target: int) -> np.ndarray:
    """Returns the maximum flow from the target's last hidden state to each input token, [L].

    The capacities are the weights with residual connections (Abnar and Zuidema 2020, section 3). The time grows with
    N L^3, so the function is meant for rows of at most about 64 tokens.
    """
    layers, length, _ = weights_NLL.shape
    capacities_NLL = np.rint(with_residual(weights_NLL) * CAPACITY).astype(np.int32)
    # Node n L + i is token i after n layers; edges lead from a layer to the layer below.
    n, i, j = np.nonzero(capacities_NLL)
    edges = (n + 1) * length + i, n * length + j
    size = (layers + 1) * length
    graph = scipy.sparse.csr_array((capacities_NLL[n, i, j], edges), shape=(size, size))
    source = layers * length + target
    flows = [scipy.sparse.csgraph.maximum_flow(graph, source, token).flow_value for token in range(length)]
    return np.array(flows) / CAPACITY


def leave_one_out(output: Output, ids_L: np.ndarray, places: Sequence[int], replacement: int) -> np.ndarray:
    """Returns how much the output changes when the token at each of these places is replaced, [places].

    The change is an absolute difference, or the Euclidean distance if the output is a vector.
    """
    rows = np.repeat(ids_L[None], len(places) + 1, axis=0)
    rows[np.arange(len(places)), list(places)] = replacement
    found = output(rows).reshape(len(rows), -1).astype(np.float64)
    return np.linalg.norm(found[:-1] - found[-1], axis=1)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Spearman's rank correlation; NaN if all values of one side are equal."""
    ranks = [scipy.stats.rankdata(x) for x in (first, second)]
    if any(np.ptp(x) == 0 for x in ranks):
        return float('nan')
    return float(np.corrcoef(*ranks)[0, 1])
