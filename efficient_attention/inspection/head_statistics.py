"""What does each attention head read? Computes the entropy, the shares of weight and the distances of all heads.

A share is also weighed by the length of the projected values: a head may give a token much weight whose value adds
almost nothing (Kobayashi et al. 2020, arXiv 2004.10102, section 3).
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import entr

from efficient_attention.inference.attention_pipeline import DecoderRows, EncoderRows, TokenRow

QUERIES_AT_ONCE = 256
SAMPLED = 16  # queries per window from which the distances between heads are computed
MOST_SAMPLED = 1024  # queries in all from which the distances between heads are computed
PIECE_MARKS = (
    '##',
    '\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}',
    '\N{LOWER ONE EIGHTH BLOCK}',
)  # WordPiece, BPE, Unigram

Head = tuple[int, int]  # layer and head, from 0


def key_classes(rows: EncoderRows | DecoderRows, row: TokenRow, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the classes of keys whose share of weight is measured, each as bool [M].

    The classes are 'cls', 'sep' and 'punctuation' for an encoder, 'first' and 'punctuation' for a decoder. A decoder
    with segment memory also has 'memory', the tokens of earlier windows; a model of images has no 'punctuation'.
    """
    punctuation_M = np.array([is_punctuation(name) for name in keys])
    if isinstance(rows, EncoderRows):
        ids_M = row.ids_L
        return {'cls': ids_M == rows.encoder.cls, 'sep': ids_M == rows.encoder.sep, 'punctuation': punctuation_M}
    places_M = np.arange(len(keys))
    found = {'first': places_M == 0}
    if not rows.image_shape:
        found['punctuation'] = punctuation_M
    if rows.model.config.memory_length:
        found['memory'] = places_M < len(keys) - len(row.names)
    return found


def is_punctuation(token: str) -> bool:
    """Returns whether all characters of a token are Unicode punctuation; marks of pieces such as '##' are left out."""
    for mark in PIECE_MARKS:
        token = token.removeprefix(mark)
    letters = token.strip()
    return bool(letters) and all(unicodedata.category(letter).startswith('P') for letter in letters)


class HeadStatistics:
    """Sums over the queries of many windows, by layer and head.

    Args:
        image_shape: the H rows, W columns and C channels of an image, if the model reads images. The tokens are then a
            start token and the bytes of the pixels in reading order, and distances are in pixels instead of tokens.
    """

    def __init__(self, image_shape: tuple[int, ...] | None = None) -> None:
        self.image_shape = image_shape
        self.sums: dict[int, dict[str, np.ndarray]] = {}

    def add(self, layer: Mapping[str, Any], classes: Mapping[str, np.ndarray]) -> None:
        """Adds a layer of a window, as the pipeline `attention` returns it; `classes` are those of `key_classes`."""
        weights_HLM, norms_HM = layer['weights'], layer.get('value_norms')
        heads, queries, keys = weights_HLM.shape
        for first in range(0, queries, QUERIES_AT_ONCE):
            block_HlM = weights_HLM[:, first : first + QUERIES_AT_ONCE].astype(np.float64)
            places_l = np.arange(first, first + block_HlM.shape[1]) + keys - queries
            weights_HlM, has_keys_Hl = normalized(block_HlM)
            found = {'queries': has_keys_Hl, 'entropy': entr(weights_HlM).sum(-1)}
            found |= self.distances(weights_HlM, places_l)
            near = neighbours(places_l, self.image_shape)
            found |= {f'share/{name}': x for name, x in shares(weights_HlM, classes, near).items()}
            if norms_HM is not None:
                valued_HlM, has_value_Hl = normalized(weights_HlM * norms_HM[:, None].astype(np.float64))
                found['valued_queries'] = has_value_Hl
                by_values = shares(valued_HlM, classes, near)
                found |= {f'value_share/{name}': x for name, x in by_values.items()}
            sums = self.sums.setdefault(int(layer['layer']), {})
            for name, x_Hl in found.items():
                sums[name] = sums.get(name, np.zeros(heads)) + x_Hl.sum(1)

    def distances(self, weights_HlM: np.ndarray, places_l: np.ndarray) -> dict[str, np.ndarray]:
        """Returns each query's mean distance from what it reads, [H, l], and whether it has one.

        The start token of an image is no pixel: it has no distance, and the weight that it gets does not count.
        """
        places_M = np.arange(weights_HlM.shape[-1])
        if self.image_shape is None:
            distances_lM = np.abs(places_l[:, None] - places_M).astype(np.float64)
            return {'distance': (weights_HlM * distances_lM).sum(-1), 'distance_queries': weights_HlM.any(-1)}
        columns, channels = columns_and_channels(self.image_shape)
        (rows_l, columns_l), (rows_m, columns_m) = (
            np.divmod((places - 1) // channels, columns) for places in (places_l, places_M[1:])
        )
        distances_lm = np.hypot(rows_l[:, None] - rows_m, columns_l[:, None] - columns_m)
        weights_Hlm, has_pixels_Hl = normalized(weights_HlM[..., 1:] * (places_l > 0)[:, None])
        return {'distance': (weights_Hlm * distances_lm).sum(-1), 'distance_queries': has_pixels_Hl}

    def result(self) -> list[dict[str, Any]]:
        """Returns the means over all queries that read a key, a dict per head.

        'entropy' is in nats; 'mean_distance' in tokens or pixels; 'shares' and 'value_shares' are numbers from 0 to 1,
        by class of keys; 'value_shares' is empty if the lengths of values are unknown.
        """
        return [one for layer in sorted(self.sums) for one in heads_of_layer(layer, self.sums[layer])]


def heads_of_layer(layer: int, sums: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns the statistics of the heads of one layer from their sums."""
    found = []
    for head in range(len(sums['queries'])):
        count = max(float(sums['queries'][head]), 1.0)
        valued = max(float(sums['valued_queries'][head]), 1.0) if 'valued_queries' in sums else 1.0
        distant = max(float(sums['distance_queries'][head]), 1.0)
        one: dict[str, Any] = {'layer': layer, 'head': head, 'entropy': float(sums['entropy'][head]) / count}
        one['mean_distance'] = float(sums['distance'][head]) / distant
        for kind, total in (('share', count), ('value_share', valued)):
            names = [name for name in sums if name.startswith(f'{kind}/')]
            one[f'{kind}s'] = {name.partition('/')[2]: float(sums[name][head]) / total for name in names}
        found.append(one)
    return found


def normalized(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights that sum to 1 over the last axis, and whether they do: a query without keys keeps zeros.

    Mechanisms such as nystrom may have negative weights; these count as 0.
    """
    positive = np.maximum(weights, 0.0)
    total = positive.sum(-1, keepdims=True)
    return positive / np.where(total > 0, total, 1.0), (total > 0)[..., 0].astype(np.float64)


def columns_and_channels(image_shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the columns and the channels of images of this shape; a shape [H, W] has one channel."""
    return image_shape[1], math.prod(image_shape[2:])


def neighbours(places_l: np.ndarray, image_shape: tuple[int, ...] | None) -> dict[str, np.ndarray]:
    """Returns the places of each query's neighbours, [l]; a number below 0 is no place.

    In images, 'left' and 'above' are the same channel of the pixel to the left and of the pixel above.
    """
    found = {'self': places_l, 'previous': places_l - 1, 'next': places_l + 1}
    if image_shape is not None:
        columns, channels = columns_and_channels(image_shape)
        has_left_l = (places_l - 1) // channels % columns > 0
        above_l = places_l - columns * channels
        # Place 0 is the start token, which is no pixel.
        found['left'] = np.where(has_left_l, places_l - channels, -1)
        found['above'] = np.where(above_l > 0, above_l, -1)
    return found


def shares(
    weights_HlM: np.ndarray, classes: Mapping[str, np.ndarray], near: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the share of weight of each class of keys, and of each query's neighbours, [H, l] each."""
    keys = weights_HlM.shape[-1]
    found = {name: weights_HlM[..., is_member_M].sum(-1) for name, is_member_M in classes.items()}
    queries_l = np.arange(weights_HlM.shape[1])
    for name, at_l in near.items():
        is_key_l = (at_l >= 0) & (at_l < keys)
        found[name] = weights_HlM[:, queries_l, np.clip(at_l, 0, keys - 1)] * is_key_l
    return found


class HeadDistances:
    """The mean Jensen-Shannon divergence between the weights of each pair of heads, over sampled queries."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.sums_NN: np.ndarray | None = None
        self.queries = 0
        self.sampled: list[np.ndarray] = []

    def add(self, layer: Mapping[str, Any]) -> None:
        """Adds a layer of a window; `end_window` must follow the last layer."""
        weights_HLM = layer['weights']
        if self.queries >= MOST_SAMPLED:
            return
        if self.sums_NN is None:
            self.heads += [(int(layer['layer']), head) for head in range(len(weights_HLM))]
        chosen = np.unique(np.linspace(0, weights_HLM.shape[1] - 1, SAMPLED).astype(int))
        self.sampled.append(weights_HLM[:, chosen].astype(np.float64))

    def end_window(self) -> None:
        """Adds the divergences between all heads in the window whose layers have been added."""
        if not self.sampled:
            return
        found_NN = divergences(np.concatenate(self.sampled))
        self.queries += self.sampled[0].shape[1]
        self.sums_NN = found_NN if self.sums_NN is None else self.sums_NN + found_NN
        self.sampled = []

    def result(self) -> np.ndarray:
        """Returns the distances between heads, [heads, heads]: the root of the mean divergence in nats.

        The root of the divergence is a metric (Endres and Schindelin 2003). Clark et al. 2019 (arXiv 1906.04341,
        section 6) use the divergence itself.
        """
        assert self.sums_NN is not None
        return np.sqrt(np.maximum(self.sums_NN, 0.0) / max(self.queries, 1))


def divergences(weights_NTM: np.ndarray) -> np.ndarray:
    """Returns the Jensen-Shannon divergence in nats between each pair of heads, summed over T queries, [heads, heads].

    Queries without keys count as divergence 0 from one another.
    """
    weights_NTM, _ = normalized(weights_NTM)
    entropies_NT = entr(weights_NTM).sum(-1)
    found_NN = np.zeros((len(weights_NTM),) * 2)
    for head, weights_TM in enumerate(weights_NTM):
        mixed_nT = entr((weights_NTM[head:] + weights_TM) / 2).sum(-1)
        found_NN[head, head:] = (mixed_nT - (entropies_NT[head:] + entropies_NT[head]) / 2).sum(-1)
    return np.maximum(found_NN, found_NN.T)


def map_of_heads(distances_NN: np.ndarray) -> np.ndarray:
    """Returns a place in the plane for each head, [heads, 2], by classical multidimensional scaling (Torgerson 1952).

    The largest coordinate of each axis is positive, so that the map does not depend on the eigenvectors' signs.
    """
    count = len(distances_NN)
    centring_NN = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-centring_NN @ np.square(distances_NN) @ centring_NN / 2)
    values, vectors = np.pad(values[::-1], (0, 2))[:2], np.pad(vectors[:, ::-1], ((0, 0), (0, 2)))[:, :2]
    places_N2 = vectors * np.sqrt(np.maximum(values, 0.0))
    largest_2 = places_N2[np.abs(places_N2).argmax(0), np.arange(2)]
    return places_N2 * np.where(largest_2 < 0, -1.0, 1.0)
