"""What a pretrained encoder puts in the place of [MASK]."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from efficient_attention.data.tokenizers import load_tokenizer, vocabulary_of
from efficient_attention.errors import InputError
from efficient_attention.evaluation.pretrained_models import pretrained_module, row_length
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.models.pretraining import PretrainingModel


class Candidate(NamedTuple):
    """A token that the model considers for a masked position."""

    token: str
    probability: float


class MaskFiller:
    """A pretrained model from its workdir or a Hugging Face folder, ready to fill masks; needs no data and one device.

    `checkpoint` of a workdir is 'last', 'best' by the config's `checkpoint.best_metric`, or a step's number.

    Raises:
        InputError: there is no model with a masked-LM head in the folder, no tokenizer, or no such checkpoint.
    """

    def __init__(self, path: Path, *, checkpoint: str = '', pretrained: Pretrained | None = None) -> None:
        pretrained = pretrained or open_pretrained(path, checkpoint)
        if pretrained.problem != 'fill_mask':
            raise InputError(f'{path} holds a model for {pretrained.problem!r}; filling masks needs pretraining')
        if pretrained.tokenizer is None:
            raise InputError(f'{path}: no tokenizer there')
        self.tokenizer: Tokenizer = load_tokenizer(pretrained.tokenizer, lowercase=pretrained.lowercase)
        self.vocabulary = vocabulary_of(self.tokenizer, str(pretrained.tokenizer))
        self.length = row_length(path, pretrained)
        model = pretrained.model
        self.model = pretrained_module(lambda rngs: PretrainingModel(model, has_pairs=False, rngs=rngs), pretrained)

    def __call__(self, text: str, top: int = 5) -> list[list[Candidate]]:
        """The `top` most probable tokens for each [MASK] in `text`, best first; special tokens are no candidates.

        Raises:
            InputError: `top` is below 1, the text has no [MASK], or is longer than the model's positions.
        """
        if top < 1:
            raise InputError(f'top is {top}; it must be at least 1')
        vocabulary = self.vocabulary
        mask = self.token(vocabulary.mask)
        ids = [
            vocabulary.cls,
            *self.tokenizer.encode(text.replace('[MASK]', mask), add_special_tokens=False).ids,
            vocabulary.sep,
        ]
        places = [place for place, id in enumerate(ids) if id == vocabulary.mask]
        if not places:
            raise InputError(f'no [MASK] in the text {text!r}')
        if len(ids) > self.length:
            raise InputError(f'the text has {len(ids)} tokens; the model takes {self.length}')
        logits_PV = self.logits(ids, places)
        logits_PV[:, list(vocabulary.special)] = -np.inf
        logits_PV[:, vocabulary.size :] = -np.inf  # rows of the table that no token uses
        probabilities_PV = np.asarray(jax.nn.softmax(logits_PV, axis=-1))
        best = np.argsort(-probabilities_PV, axis=-1)[:, :top]
        return [
            [Candidate(self.readable(int(id)), float(row[id])) for id in ids_of_row]
            for row, ids_of_row in zip(probabilities_PV, best, strict=True)
        ]

    def token(self, id: int) -> str:
        """A token's text as its tokenizer writes it."""
        return self.tokenizer.id_to_token(id) or ''

    def readable(self, id: int) -> str:
        """A token's text for people: a whole word as it is, a piece inside a word with '##' in front."""
        text = self.tokenizer.decode([id], skip_special_tokens=False).strip() or self.token(id)
        return f'##{text.removeprefix("##")}' if self.vocabulary.is_continuation[id] else text

    def logits(self, ids: list[int], places: list[int]) -> np.ndarray:
        """float32 [P, V] at `places` of one text of `ids`."""
        tokens_1L = jnp.asarray([ids], jnp.int32)
        x_1LD = self.model.encoder(tokens_1L, jnp.ones_like(tokens_1L))
        return np.array(self.model.masked_logits(x_1LD, jnp.asarray([places], jnp.int32))[0])
