"""Makes arrays of attention and reads pages back, for the tests of attention pages."""

import base64
import json
import re
from typing import Any, NamedTuple

import numpy as np

SPECIAL_TOKENS = (
    '[CLS] the old dog </script><img_src=x_onerror=alert(1)> 😀👩‍👩‍👧 שלום مرحبا [SEP] it barks [SEP]'.split()
)
SPECIAL_TEXTS = [None, *[0] * 7, None, 1, 1, None]


def made_weights(*shape: int, seed: int = 0, is_causal: bool = False) -> np.ndarray:
    """Returns random weights whose rows add up to 1; with `is_causal` the last L keys are read from left to right."""
    logits = 2.0 * np.random.default_rng(seed).standard_normal(shape, np.float32)
    weights = np.exp(logits)
    if is_causal:
        weights = np.tril(weights, shape[-1] - shape[-2])
    return weights / weights.sum(-1, keepdims=True)


def made_layers(layers: int, heads: int, queries: int, keys: int, *, width: int = 4) -> list[dict[str, Any]]:
    """Returns layers as the pipeline `attention` gives them, with causal weights in the second half of the heads."""
    rng = np.random.default_rng(7)

    def layer(number: int) -> dict[str, Any]:
        query, key = (rng.standard_normal((heads, count, width), np.float32) for count in (queries, keys))
        weights = np.exp(0.5 * query @ key.swapaxes(1, 2))
        weights[heads // 2 :] = np.tril(weights[heads // 2 :], keys - queries)
        weights /= weights.sum(-1, keepdims=True)
        norms = rng.uniform(0.1, 2.0, (heads, keys)).astype(np.float32)
        arrays = {'weights': weights, 'queries': query, 'keys': key, 'scale': 0.5, 'value_norms': norms}
        return {'layer': number, 'heads': [*range(heads)], **arrays}

    return [layer(number) for number in range(layers)]


class ReadPage(NamedTuple):
    """The data of a page: its JSON, and its arrays as bytes."""

    content: dict[str, Any]
    blocks: bytes

    def array(self, offset: int, count: int, kind: str = 'u1') -> np.ndarray:
        """Returns `count` numbers from an offset in bytes."""
        return np.frombuffer(self.blocks, f'<{kind}', count, offset)

    def head(self, layer: int, head: int, window: int = 0) -> np.ndarray:
        """Returns a head's weights [L, M]: 0 for each edge that the page does not have."""
        record = self.content['windows'][window]
        queries, keys = len(record['tokens']), len(record['keys'] or record['tokens'])
        found = record['layers'][layer]['heads'][head]
        weights = np.zeros((queries, keys))
        if 'dense' in found:
            weights[:] = found['top'] * (self.array(found['dense'], queries * keys).reshape(queries, keys) / 255) ** 2
            if 'signs' in found:
                bits = np.unpackbits(self.array(found['signs'], -(-queries * keys // 8)), bitorder='little')
                weights *= 1.0 - 2.0 * bits[: queries * keys].reshape(queries, keys)
            return weights
        counts = self.array(found['counts'], queries, 'u2') & 32767
        total = int(counts.sum())
        numbers, codes = self.array(found['keys'], total, 'u2'), self.array(found['codes'], total)
        signs = 1.0 - 2.0 * (numbers >> 15)
        weights[np.repeat(np.arange(queries), counts), numbers & 32767] = found['top'] * (codes / 255) ** 2 * signs
        return weights


def read_page(page: str) -> ReadPage:
    """Returns the data of a page."""
    data, blocks = (
        re.findall(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', page)[0] for name in ('data', 'blocks')
    )
    return ReadPage(json.loads(data), base64.b64decode(blocks))
