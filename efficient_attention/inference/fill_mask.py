"""Fills each [MASK] in a text with the tokens that a pretrained encoder finds most probable."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax import Array
from tokenizers import Tokenizer

from efficient_attention.attention.request import Lengths
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.vocabulary import readable_token, vocabulary_of
from efficient_attention.errors import InputError
from efficient_attention.inference.per_item_errors import check_text, map_items
from efficient_attention.inference.pretrained_models import pretrained_module, row_length
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.models.pretraining import PretrainingModel

Row = tuple[list[int], list[int]]  # (token ids including special tokens, positions of the masks)


class MaskTokenCandidate(NamedTuple):
    """A token proposed for a masked position, with its probability."""

    token: str
    probability: float


class MaskFiller:
    """A pretrained masked language model that fills masks, loaded from a workdir or a Hugging Face folder; uses one
    device.

    No data files are read. `checkpoint` of a workdir is 'last', 'best' by the config's `checkpoint.best_metric`, or a
    step's number.

    Raises:
        InputError: the folder has no model with a masked-LM head, no tokenizer, or no such checkpoint.
    """

    def __init__(self, path: Path, *, checkpoint: str = '', pretrained: Pretrained | None = None) -> None:
        pretrained = pretrained or open_pretrained(path, checkpoint)
        if pretrained.problem != 'fill_mask':
            is_bare = pretrained.problem == 'none'
            what = 'an encoder without a head' if is_bare else f'a model for {pretrained.problem!r}'
            raise InputError(f'{path} holds {what}; filling masks needs one that was pretrained on masked words')
        if pretrained.tokenizer is None:
            raise InputError(f'{path}: no tokenizer there')
        self.tokenizer: Tokenizer = load_tokenizer(pretrained.tokenizer, lowercase=pretrained.lowercase)
        self.vocabulary = vocabulary_of(self.tokenizer, str(pretrained.tokenizer))
        self.reader = make_plain_text_tokenizer(self.tokenizer, (self.token_text(self.vocabulary.mask),))
        self.length = row_length(pretrained)
        config = pretrained.model
        self.model = pretrained_module(lambda rngs: PretrainingModel(config, has_pairs=False, rngs=rngs), pretrained)
        graph, self.params = nnx.split(self.model)
        self.masked_logits = jax.jit(functools.partial(masked_logits, graph))

    def __call__(self, text: str, top: int = 5) -> list[list[MaskTokenCandidate]]:
        """Returns the `top` most probable tokens for each [MASK] in `text`, best first; special tokens are excluded.

        Raises:
            InputError: `top` is below 1, or the text has no [MASK].
        """
        return self.fill_masks([text], top)[0]

    def fill_masks(
        self, texts: Sequence[str], top: int = 5, *, batch_size: int = 32
    ) -> list[list[list[MaskTokenCandidate]]]:
        """Returns the most probable tokens for each [MASK] of several texts; the model processes `batch_size` rows at a
        time.
        """
        if top < 1:
            raise InputError(f'top is {top}; it must be at least 1')
        rows_of_text = map_items(texts, self.mask_windows)
        rows = [row for one_text in rows_of_text for row in one_text]
        logits = [
            logits_PV
            for start in range(0, len(rows), batch_size)
            for logits_PV in self.mask_logits(rows[start : start + batch_size])
        ]
        found = (self.candidates(logits_V, top) for logits_PV in logits for logits_V in logits_PV)
        return [[next(found) for _, places in one_text for _ in places] for one_text in rows_of_text]

    def mask_windows(self, text: str) -> list[Row]:
        """Returns the token ids of a text and the positions of its masks; a text that is too long becomes one window
        per mask.

        Raises:
            InputError: `text` is not a text, or has no [MASK].
        """
        check_text(text)
        vocabulary, room = self.vocabulary, self.length - 2
        text = text.replace('[MASK]', self.token_text(vocabulary.mask))
        ids = self.reader.encode(text, add_special_tokens=False).ids
        places = [place for place, id in enumerate(ids) if id == vocabulary.mask]
        if not places:
            raise InputError(f'no [MASK] in the text {text!r}')
        windows = [(0, places)]
        if len(ids) > room:
            starts = [min(max(place - room // 2, 0), len(ids) - room) for place in places]
            windows = [(start, [place]) for start, place in zip(starts, places, strict=True)]
        return [
            ([vocabulary.cls, *ids[start : start + room], vocabulary.sep], [place - start + 1 for place in inside])
            for start, inside in windows
        ]

    def candidates(self, logits_V: np.ndarray, top: int) -> list[MaskTokenCandidate]:
        """Returns the `top` most probable tokens for one mask from its logits [V]."""
        logits_V = logits_V.copy()
        logits_V[list(self.vocabulary.special)] = -np.inf
        logits_V[self.vocabulary.size :] = -np.inf  # ids without a token, which only pad the embedding table
        probabilities_V = np.asarray(jax.nn.softmax(logits_V))
        best = np.argsort(-probabilities_V, kind='stable')[:top]
        return [MaskTokenCandidate(self.readable_token(int(id)), float(probabilities_V[id])) for id in best]

    def token_text(self, id: int) -> str:
        """Returns the token with this id as the tokenizer stores it, including markers such as '##'."""
        return self.tokenizer.id_to_token(id) or ''

    def readable_token(self, id: int) -> str:
        """Returns the text of a token id in readable form, without the tokenizer's markers."""
        return readable_token(self.tokenizer, self.vocabulary, id)

    def mask_logits(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Returns float32 logits [P, V] at the P mask positions of each row; shorter rows are padded to the longest
        row.
        """
        length, count = max(len(ids) for ids, _ in rows), max(len(places) for _, places in rows)
        tokens_BL = np.full((len(rows), length), self.vocabulary.pad, np.int32)
        lengths_B, places_BP = np.zeros(len(rows), np.int32), np.zeros((len(rows), count), np.int32)
        for number, (ids, places) in enumerate(rows):
            tokens_BL[number, : len(ids)], lengths_B[number] = ids, len(ids)
            places_BP[number, : len(places)] = places
        logits_BPV = np.asarray(self.masked_logits(self.params, tokens_BL, lengths_B, places_BP))
        return [logits_PV[: len(places)] for logits_PV, (_, places) in zip(logits_BPV, rows, strict=True)]


def masked_logits(
    graph: nnx.GraphDef, params: nnx.State, tokens_BL: Array, lengths_B: Array, places_BP: Array
) -> Array:
    """Returns float32 logits [B, P, V] of a masked language model at the P given positions of each row.

    `lengths_B` is the number of tokens of each row, before its padding.
    """
    model = nnx.merge(graph, params)
    return model.masked_logits(model.encoder(tokens_BL, Lengths(lengths_B)), places_BP)
