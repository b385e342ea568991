"""Fields of a decoder's logits and loss, a part of the config group `model`."""

import dataclasses
import itertools

from efficient_attention.config.embedding import EmbeddingConfig
from efficient_attention.config.fields import EXPORTED, read_by
from efficient_attention.errors import require

DECODING = ('language_modelling', 'text_to_text')  # the tasks whose models have a decoder


@dataclasses.dataclass(frozen=True)
class OutputConfig(EmbeddingConfig):
    """The softmax over words: tied to the token table or not, whole or adaptive.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # rows of the token table and outputs of an encoder-decoder's decoder, where they are not `vocab_size`, as of the
    # encoder; 0 = they are
    target_vocab_size: int = read_by('text_to_text', default=0)
    # a decoder's logits from the token table, or from a dense layer of their own
    tied_output: bool = read_by(*DECODING, default=True)
    # a tied output's vectors times 1 / sqrt(width) (T5)
    output_scale: bool = read_by(*DECODING, default=False)
    # a bias for each word with a tied or an adaptive output; the dense layer has one by `dense_output_bias`
    output_bias: bool = read_by(*DECODING, default=False)
    dense_output_bias: bool = read_by(*DECODING, default=True)  # of an output that is neither tied nor adaptive
    # first ids of the tail clusters of a decoder's softmax; () = one softmax
    adaptive_cutoffs: tuple[int, ...] = read_by(*DECODING, default=())
    adaptive_divisor: int = 1  # cluster i has vectors of width E / divisor^i; 1 = one table
    # positions of each row whose logits a decoder's loss holds at a time; 0 = all at once
    loss_chunk: int = read_by(*DECODING, default=0, marks=(EXPORTED,))

    def __post_init__(self) -> None:
        EmbeddingConfig.__post_init__(self)
        require(self.loss_chunk >= 0, 'model.loss_chunk', self.loss_chunk, '0 or more')
        size = self.target_vocab_size
        require(size >= 0, 'model.target_vocab_size', size, '0 or more')
        for name, unread in (('shared_table', False), ('adaptive_cutoffs', ())):
            value, allowed = getattr(self, name), f'{unread!r} with model.target_vocab_size {size}'
            require(not size or value == unread, f'model.{name}', value, allowed)
        self.check_clusters()

    def check_clusters(self) -> None:
        """Raises InputError where the fields of the adaptive softmax do not fit one another."""
        cutoffs, divisor = self.adaptive_cutoffs, self.adaptive_divisor
        edges = (0, *cutoffs, self.vocab_size)
        require(
            all(low < high for low, high in itertools.pairwise(edges)),
            'model.adaptive_cutoffs',
            cutoffs,
            f'rising ids above 0 and below model.vocab_size {self.vocab_size}',
        )
        if not cutoffs:
            require(divisor == 1, 'model.adaptive_divisor', divisor, '1 without model.adaptive_cutoffs')
        else:
            allowed = f'1 to {self.embedding_width} in its power {len(cutoffs)}, so that each cluster has a width'
            fits = 1 <= divisor and divisor ** len(cutoffs) <= self.embedding_width
            require(fits, 'model.adaptive_divisor', divisor, allowed)
        has_dense = not self.tied_output and not cutoffs
        require(not (self.output_bias and has_dense), 'model.output_bias', True, 'False with a dense output layer')
        is_read = has_dense or self.dense_output_bias
        require(is_read, 'model.dense_output_bias', False, 'True without a dense output layer')
        is_read = (self.tied_output and not cutoffs) or not self.output_scale
        require(is_read, 'model.output_scale', True, 'False without a tied output of one softmax')
