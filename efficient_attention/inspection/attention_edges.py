"""Chooses the strongest edges of each query within a budget of bytes, and packs them into the blocks of a page.

An edge is a query with a key that it reads: a weight other than 0. Local letters: k edges of a query, t tiles.
"""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from efficient_attention.errors import InputError, require

CODES = 255  # largest code of a value in 8 bits; 0 means exactly 0
TILES = 48  # most rows and columns of a thumbnail
MOST_KEYS = 2**15 - 1  # 15 bits number a key; the 16th is the sign of the weight
QUERIES_AT_ONCE = 512  # queries whose keys are sorted together, to save memory


class HeadEdges(NamedTuple):
    """The strongest edges of a head, and what the page says about all its edges.

    Attributes:
        keys_Lk: the keys of each query, the strongest first.
        weights_Lk: their weights, float32.
        counts_L: the number of keys that each query reads; may be more than k.
        total: the sum of all absolute weights.
        tiles_tt: the share of the weight that a tile of queries gives to a tile of keys.
        sums_L: the sum over all keys of |weight| x norm of the value; None without norms.
        key_count: M.
    """

    keys_Lk: np.ndarray
    weights_Lk: np.ndarray
    counts_L: np.ndarray
    total: float
    tiles_tt: np.ndarray
    sums_L: np.ndarray | None
    key_count: int

    def with_most(self, most: int) -> 'HeadEdges':
        """Returns the edges with at most `most` edges for each query."""
        if self.keys_Lk.shape[1] <= most:
            return self
        return self._replace(keys_Lk=self.keys_Lk[:, :most].copy(), weights_Lk=self.weights_Lk[:, :most].copy())


class Blocks:
    """Blocks of bytes that a page has as one base64 text; each starts at an even offset."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, array: np.ndarray, kind: str = 'u1') -> int:
        """Appends an array as little-endian numbers of a kind, such as 'u2', and returns its offset in bytes."""
        data = np.ascontiguousarray(array, f'<{kind}').tobytes()
        offset, padding = self.size, b'\0' * (len(data) % 2)
        self.parts += [data, padding]
        self.size += len(data) + len(padding)
        return offset

    def base64(self) -> str:
        """Returns all blocks as base64."""
        return base64.b64encode(b''.join(self.parts)).decode('ascii')


def quantize(values: np.ndarray, top: float) -> np.ndarray:
    """Returns 8-bit codes of values: the root of |value| / top in steps of 1/255, and code 0 only for exactly 0.

    The root keeps small weights apart. A decoded value differs by at most top / 255.
    """
    magnitudes = np.abs(values)
    codes = np.rint(CODES * np.sqrt(magnitudes / (top or 1.0)))
    return np.where(magnitudes > 0, np.clip(codes, 1, CODES), 0).astype(np.uint8)


def largest(values: np.ndarray) -> float:
    """Returns the largest absolute value; 0 if there are no values."""
    return float(np.abs(values).max(initial=0.0))


def layer_edges(weights_HLM: np.ndarray, norms_HM: np.ndarray | None, room: float) -> list[HeadEdges]:
    """Returns the strongest edges of a layer's heads, as many for each query as `room` bytes hold.

    Raises:
        InputError: a weight is not finite, or there are too many keys.
    """
    heads, queries, keys = weights_HLM.shape
    require(keys <= MOST_KEYS, 'keys', keys, f'at most {MOST_KEYS}')
    counts_HL = np.zeros((heads, queries), np.int64)
    for number, weights_LM in enumerate(weights_HLM):
        if not np.isfinite(weights_LM).all():
            raise InputError(f'a weight of head {number} is not a finite number')
        counts_HL[number] = np.count_nonzero(weights_LM, axis=-1)
    most = most_edges([(counts_L, keys) for counts_L in counts_HL], room)
    norms = [None] * heads if norms_HM is None else [*np.asarray(norms_HM, np.float32)]
    return [
        _head_edges(np.asarray(weights_LM), counts_L, norms_M, max(1, most))
        for weights_LM, counts_L, norms_M in zip(weights_HLM, counts_HL, norms, strict=True)
    ]


def _head_edges(weights_LM: np.ndarray, counts_L: np.ndarray, norms_M: np.ndarray | None, most: int) -> HeadEdges:
    queries, keys = weights_LM.shape
    most = min(most, max(1, int(counts_L.max(initial=0))), keys)
    keys_Lk, found_Lk = np.zeros((queries, most), np.uint16), np.zeros((queries, most), np.float32)
    sums_L = None if norms_M is None else np.zeros(queries)
    columns_Lt, total = np.zeros((queries, min(keys, TILES))), 0.0
    for start in range(0, queries, QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        weights_lM = np.asarray(weights_LM[part], np.float32)
        strength_lM = np.abs(weights_lM)
        order_lk = np.argpartition(-strength_lM, most - 1)[:, :most] if most < keys else np.arange(keys)[None]
        order_lk = np.broadcast_to(order_lk, (len(weights_lM), most))
        sorting_lk = np.argsort(-np.take_along_axis(strength_lM, order_lk, 1), axis=1, kind='stable')
        keys_Lk[part] = order_lk = np.take_along_axis(order_lk, sorting_lk, 1)
        found_Lk[part] = np.take_along_axis(weights_lM, order_lk, 1)
        columns_Lt[part] = np.add.reduceat(strength_lM, tile_starts(keys), axis=1, dtype=np.float64)
        total += float(strength_lM.sum(dtype=np.float64))
        if sums_L is not None:
            sums_L[part] = strength_lM @ norms_M
    rows = tile_starts(queries)
    tiles_tt = np.add.reduceat(columns_Lt, rows, axis=0) / np.diff([*rows, queries])[:, None]
    return HeadEdges(keys_Lk, found_Lk, counts_L, total, tiles_tt, sums_L, keys)


def tile_starts(length: int) -> np.ndarray:
    """Returns the first position of each tile of a thumbnail."""
    count = min(length, TILES)
    return np.arange(count) * length // count


def edge_bytes(counts_L: np.ndarray, keys: int, most: int) -> int:
    """Returns the bytes of a head's edges with at most `most` edges for each query, in the smaller of two forms.

    The dense form has a byte for each pair. The sparse form has three for each edge, and two for each query.
    """
    kept = int(np.minimum(counts_L, most).sum())
    sparse = 2 * len(counts_L) + 3 * kept + 2
    is_whole = most >= counts_L.max(initial=0)
    return min(sparse, len(counts_L) * keys * 9 // 8 + 4) if is_whole else sparse  # the ninth bit is for signs


def most_edges(heads: Sequence[tuple[np.ndarray, int]], room: float) -> int:
    """Returns the most edges for each query that fit in `room` bytes; 0 if not even one does.

    Args:
        heads: for each head, the number of keys that each query reads, and the number of keys.
        room: bytes.
    """

    def fits(most: int) -> bool:
        return sum(edge_bytes(counts_L, keys, most) for counts_L, keys in heads) <= room

    low, high = 0, max((keys for _, keys in heads), default=1)
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def pack_edges(edges: HeadEdges, most: int, blocks: Blocks) -> dict[str, Any]:
    """Appends a head's edges, at most `most` for each query, and returns their record.

    'share' is the share of the head's weight that these edges have; 'most' is null if all edges are there.
    """
    keys_Lk, weights_Lk = edges.keys_Lk[:, :most], edges.weights_Lk[:, :most]
    is_edge_Lk, top = weights_Lk != 0.0, largest(weights_Lk)
    is_whole = int(edges.counts_L.max(initial=0)) <= keys_Lk.shape[1]
    shown = float(np.abs(weights_Lk).sum(dtype=np.float64))
    record: dict[str, Any] = {
        'top': top,
        'share': 1.0 if is_whole or not edges.total else round(shown / edges.total, 6),
        'most': None if is_whole else keys_Lk.shape[1],
        'edges': int(is_edge_Lk.sum()),
    }
    has_signs = bool((weights_Lk < 0.0).any())
    codes_Lk = quantize(weights_Lk, top)
    queries = len(keys_Lk)
    dense = queries * edges.key_count * (9 if has_signs else 8) // 8
    if is_whole and dense <= 2 * queries + 3 * record['edges']:
        codes_LM = np.zeros((queries, edges.key_count), np.uint8)
        rows_Lk = np.broadcast_to(np.arange(queries)[:, None], keys_Lk.shape)[is_edge_Lk]
        codes_LM[rows_Lk, keys_Lk[is_edge_Lk]] = codes_Lk[is_edge_Lk]
        record['dense'] = blocks.add(codes_LM)
        if has_signs:
            signs_LM = np.zeros(codes_LM.shape, bool)
            signs_LM[rows_Lk, keys_Lk[is_edge_Lk]] = weights_Lk[is_edge_Lk] < 0.0
            record['signs'] = blocks.add(np.packbits(signs_LM, bitorder='little'))
        return record
    kept_L = is_edge_Lk.sum(1)
    record['counts'] = blocks.add(kept_L | (kept_L == edges.counts_L) << 15, 'u2')  # bit 15: these are all its keys
    record['keys'] = blocks.add((keys_Lk | (weights_Lk < 0.0).astype(np.uint16) << 15)[is_edge_Lk], 'u2')
    record['codes'] = blocks.add(codes_Lk[is_edge_Lk])
    return record
