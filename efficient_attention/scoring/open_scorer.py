"""Opens the scorer that fits a trained model: decoders, encoder-decoders, and encoders that fill masks."""

from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.language_models import imported_language_model, open_language_model
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.inference.translator import make_pretrained_pair_encoder
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, TEXT_TO_TEXT
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.interop.workdir_import import is_decoder_run
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.scoring.decoder_scorer import DecoderScorer
from efficient_attention.scoring.masked_scorer import MaskedScorer
from efficient_attention.scoring.pairs import Scorer
from efficient_attention.scoring.seq2seq_scorer import Seq2SeqScorer
from efficient_attention.workdir.checkpoint_reader import LAST


def open_scorer(path: str | Path, *, checkpoint: str = '', batch_size: int = 16, length: int = 0) -> Scorer:
    """Returns the scorer of the trained model in a workdir or Hugging Face folder.

        scorer = ea.open_scorer('runs/pieces_full')
        [score] = scorer.score([('The capital of France is', ' Paris.')])
        score.log_prob, score.is_greedy

    A language model and an encoder-decoder score continuations; an encoder that fills masks scores whole texts.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint: 'last', 'best', a step or 'average-5'; '' = the best if one is known, else
            the last.
        batch_size: rows at a time.
        length: maximum tokens to read at once; 0 = the model's positions, or the length of its training rows.

    Raises:
        InputError: the folder has no such model, no tokenizer or no such checkpoint, or a number is out of range.
    """
    path = Path(path)
    if batch_size < 1:
        raise InputError(f'batch_size is {batch_size}; it must be at least 1')
    if is_decoder_run(path):
        opened = open_language_model(path, checkpoint)
        return DecoderScorer(opened, str(path), batch_size=batch_size, longest=length)
    # A Hugging Face folder has one checkpoint, which is its last one.
    is_run = 'task' in read_config_json(path)
    pretrained = open_pretrained(path, checkpoint if is_run or checkpoint != LAST else '')
    if pretrained.problem == LANGUAGE_MODELLING:
        opened = imported_language_model(path, pretrained)
        return DecoderScorer(opened, str(path), batch_size=batch_size, longest=length)
    if pretrained.problem == TEXT_TO_TEXT:
        encoder = make_pretrained_pair_encoder(pretrained, path, length)
        model = pretrained_module(lambda rngs: EncoderDecoder(pretrained.model, rngs=rngs), pretrained)
        return Seq2SeqScorer(model, encoder, str(path), batch_size=batch_size)
    if length:
        raise InputError(f'length is {length}; only decoders and encoder-decoders have this option')
    return MaskedScorer(MaskFiller(path, pretrained=pretrained), str(path), batch_size=batch_size)
