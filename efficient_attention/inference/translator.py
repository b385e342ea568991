"""Text-to-text inference with a trained encoder-decoder: generates translations, summaries or answers from texts."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from efficient_attention.config.run import RunConfig
from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.data.pairs.pair_encoder import PairEncoder, SourceOrTargetEncoder, special_ids_of_tokenizer
from efficient_attention.data.tokenizers.marian import TARGET, MarianTokenizer, is_marian
from efficient_attention.data.tokenizers.special_tokens import structural_tokens, tokens_by_role
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds
from efficient_attention.data.tokenizers.training import unused_ids
from efficient_attention.errors import InputError
from efficient_attention.inference.decoding_options import DecodingOptions, pretrained_decoding_options
from efficient_attention.inference.evaluate import to_host_arrays
from efficient_attention.inference.pretrained_models import pretrained_module, row_length
from efficient_attention.inference.search_settings import SamplingSeeds
from efficient_attention.inference.seq2seq_generator import GeneratedTarget, Seq2SeqGenerator
from efficient_attention.interop.config_json_keys import TEXT_TO_TEXT
from efficient_attention.interop.generation_config import ForcedTokens, task_prefixes
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.interop.target_token_ids import target_forced_tokens, target_start_piece, trained_token_ids
from efficient_attention.interop.tokenizer_files import load_piece_tokenizer
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.tasks.as_text.dataset_parsing import score_generated_texts
from efficient_attention.tasks.text_to_text import TextToTextTask, source_padded_lengths

NAMED = 5  # maximum number of unknown words that a message lists


# Fields of `EvalConfig` with the settings of beam search.
SEARCHED = ('beams', 'penalty', 'alpha', 'stop', 'repetition_penalty', 'no_repeat_ngram_size')


class Translation(NamedTuple):
    """A target text that the search generated for a source text.

    Args:
        text: the detokenised target.
        score: log-probability over the length penalty.
        pieces: pieces of the target.
        source_pieces: pieces of the source, including its end symbol.
        alignment: float32 [pieces, source pieces], cross-attention weights; None if not requested.
        is_ended: True if the model ended the text, False if the token limit did.
    """

    text: str
    score: float
    pieces: tuple[str, ...]
    source_pieces: tuple[str, ...]
    alignment: np.ndarray | None = None
    is_ended: bool = True


class Translator:
    """Generates target texts from source texts with an encoder-decoder and its tokenizers.

    Args:
        transducer: the model, from ids to ids.
        encoder: the tokenizers, and the length of the longest source; a longer source is cut.
        prefix: text put before each source.
        decoding: the search options; `transducer` must use the same.
    """

    origin = ''  # text that names the checkpoint and its step

    def __init__(
        self,
        transducer: Seq2SeqGenerator,
        encoder: PairEncoder,
        prefix: str = '',
        decoding: DecodingOptions | None = None,
    ) -> None:
        self.transducer, self.encoder, self.prefix = transducer, encoder, prefix
        self.decoding = decoding or DecodingOptions()
        self.cut_sources = 0  # number of sources so far that were too long and were cut
        self.unknown = UnknownTokenCounter(encoder.source.pieces_with_text, encoder.source.tokenizer)
        self.unended = 0  # number of texts so far whose best target reached the token limit
        self.blank = 0  # number of texts so far whose best target has nothing but spaces
        # Target texts leave out these ids. Sentinels are kept, because each sentinel names the span after it.
        self.unwritten = structural_ids(encoder.target.tokenizer)

    def __call__(
        self, texts: Sequence[str], *, alignments: bool = False, places: Sequence[int] | None = None
    ) -> list[list[Translation]]:
        """Returns the best targets of each text, best first, in the order of the texts.

        The arguments are the same as for `iterate_targets`.
        """
        found = dict(self.iterate_targets(texts, alignments=alignments, places=places))
        return [found[number] for number in range(len(texts))]

    def iterate_targets(
        self, texts: Sequence[str], *, alignments: bool = False, places: Sequence[int] | None = None
    ) -> Iterator[tuple[int, list[Translation]]]:
        """Yields (number of the text, its best targets) as soon as targets are found; short texts come first.

        If tokens are sampled, `places` are the numbers that seed each text's sampling; by default 0, 1, ...
        """
        encoder = self.encoder.source
        texts = [self.prefix + text for text in texts]
        sources = encoder.ids(texts)
        self.unknown.count_unknown_tokens(texts, [ids[encoder.symbols.special_id_count - 1 : -1] for ids in sources])
        self.cut_sources += sum(len(ids) > encoder.length for ids in sources)
        sources = [encoder.truncate_ids(ids) for ids in sources]
        draws = SamplingSeeds(self.decoding.seed, np.arange(len(texts)) if places is None else np.asarray(places))
        for number, targets in self.transducer.iterate_targets(sources, alignments=alignments, draws=draws):
            self.unended += bool(targets) and not targets[0].is_ended
            found = [self.make_translation(sources[number], target) for target in targets]
            self.blank += bool(found) and not found[0].text.strip()
            yield number, found

    def make_translation(self, source: np.ndarray, target: GeneratedTarget) -> Translation:
        """Returns a generated target as text; source tokens and alignment weights are in the order of the source
        text.
        """
        places, alignment = self.encoder.source.reversed_positions(len(source)), target.alignment
        source, alignment = source[places], None if alignment is None else alignment[:, places]
        tokenizer = self.encoder.target.tokenizer
        pieces, source_pieces = (
            tuple(one.tokenizer.id_to_token(int(id)) or '' for id in ids)
            for one, ids in ((self.encoder.target, target.ids), (self.encoder.source, source))
        )
        written = [id for id in target.ids.tolist() if id not in self.unwritten]
        text = ' '.join(tokenizer.decode(written, skip_special_tokens=False).split('\n'))
        return Translation(text, target.score, pieces, source_pieces, alignment, target.is_ended)


def make_translator(
    graph: nnx.GraphDef,
    params: Any,
    encoder: PairEncoder,
    decoding: DecodingOptions,
    prefix: str = '',
    run: RunConfig | None = None,
    forced: ForcedTokens | None = None,
) -> Translator:
    """Returns a translator for an encoder-decoder with these parameters, which must be laid out for inference.

    If the encoder depends on the length of a row, rows get the same lengths as in the run's evaluations (`run` is
    given). `forced` are tokens that every target has; by default the symbol that begins texts, if there is one.
    """
    target, model = encoder.target, nnx.merge(graph, params).config
    symbols = target.symbols
    search = decoding.search_settings(symbols.end, ForcedTokens(symbols.begin) if forced is None else forced)
    search.check_ids(model.decoder.vocab_size)
    transducer = Seq2SeqGenerator(
        graph,
        params,
        search,
        prompt=(symbols.start,),
        batching=decoding.source_batching(
            source_padded_lengths(run) if run and model.encoder.is_affected_by_padding else ()
        ),
        may_follow=allowed_token_mask(target.tokenizer, symbols, model.decoder.vocab_size, search.more_ends),
    )
    return Translator(transducer, encoder, prefix, decoding)


def allowed_token_mask(
    tokenizer: Tokenizer, symbols: SequenceSpecialIds, size: int, more_ends: Sequence[int] = ()
) -> np.ndarray:
    """Returns bool [V]: whether a target may contain each token id. Allowed are tokens of text, and the begin and end
    symbols.

    This excludes padding, the unknown piece, masks, pieces that only fill up a vocabulary, and ids without a piece.
    """
    allowed = np.arange(size) < tokenizer.get_vocab_size()
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    allowed[[id for id in (*structural_ids(tokenizer), *unused_ids(pieces)) if id < size]] = False
    allowed[[id for id in (symbols.begin, symbols.end, *more_ends) if 0 <= id < size]] = True
    return allowed


def structural_ids(tokenizer: Tokenizer) -> set[int]:
    """Returns the ids of tokens that represent no text, such as padding."""
    return {tokenizer.get_vocab()[token] for token in structural_tokens(tokenizer)}


def open_translator(
    path: Path,
    *,
    checkpoint: str = '',
    decoding: DecodingOptions | Mapping[str, Any] | None = None,
    prefix: str | None = None,
    length: int = 0,
) -> Translator:
    """Returns a translator for a workdir, or for a Hugging Face folder with T5, BART, Marian or Pegasus.

    Args:
        path: a folder that `train` wrote, or a Hugging Face folder.
        checkpoint: a run's checkpoint: 'last', 'best' or a step's number; '' = the best if one is known, else the last.
        decoding: the search options, or a mapping with some fields of `DecodingOptions`. With a mapping, the files of a
            Hugging Face folder decide the other fields that they state.
        prefix: text put before each source; by default the run's prefix, if it has only one.
        length: maximum tokens of a source; 0 = the run's length, else the model's position limit, else 512.

    Raises:
        InputError: there is no encoder-decoder, checkpoint or tokenizer, the run has several prefixes, or `length`
            exceeds the model's positions.
    """
    return make_pretrained_translator(open_pretrained(path, checkpoint), path, decoding, prefix, length=length)


def make_pretrained_translator(
    pretrained: Pretrained,
    path: Path,
    decoding: DecodingOptions | Mapping[str, Any] | None = None,
    prefix: str | None = None,
    *,
    length: int = 0,
) -> Translator:
    """Returns the translator of a loaded checkpoint.

    The arguments are the same as for `open_translator`; `path` is for messages.
    """
    encoder, run = make_pretrained_pair_encoder(pretrained, path, length), pretrained.run
    module = pretrained_module(lambda rngs: EncoderDecoder(pretrained.model, rngs=rngs), pretrained)
    graph, state = nnx.split(module)
    if prefix is None:
        prefix = single_task_prefix(run, path) if run else ''
    tokenizer = pretrained.target_tokenizer or pretrained.tokenizer
    assert tokenizer is not None  # otherwise `make_pretrained_pair_encoder` has raised an error
    forced = target_forced_tokens(pretrained, tokenizer)
    if not isinstance(decoding, DecodingOptions):
        decoding = pretrained_decoding_options(pretrained, path, decoding or {})
    translator = make_translator(graph, nnx.to_pure_dict(state), encoder, decoding, prefix, run, forced)
    translator.origin = pretrained.origin()
    if not prefix and (known := task_prefixes(pretrained.extra)):
        named = ', '.join(f'{before!r} of {task}' for task, before in known.items())
        logging.getLogger(__name__).warning('%s: its tasks have prefixes, and none is used: %s', path, named)
    return translator


def make_pretrained_pair_encoder(pretrained: Pretrained, path: Path, length: int = 0) -> PairEncoder:
    """Returns the encoder of source and target texts of a loaded checkpoint.

    Arguments and errors are as for `make_pretrained_translator`.
    """
    if pretrained.problem != TEXT_TO_TEXT:
        raise InputError(
            f'{path} was trained for {pretrained.problem!r}; text-to-text generation needs an encoder-decoder'
        )
    if pretrained.tokenizer is None:
        raise InputError(
            f'{path}: no tokenizer there (tokenizer.json, vocab.json with merges.txt, vocab.json with source.spm and '
            'target.spm, or *.model)'
        )
    run, rows = pretrained.run, row_length(pretrained)
    lengths = (run.data.length, run.pairs.target_length) if run else (rows, rows)
    limit = pretrained.model.source_limit
    check_in_interval('length', length, 0, math.inf if limit is None else limit)
    source = make_side_encoder(pretrained, pretrained.tokenizer, length or lengths[0])
    target = dataclasses.replace(source, length=lengths[1])
    if source.marian is not None:
        target = make_side_encoder(pretrained, pretrained.tokenizer.with_name(TARGET), lengths[1])
    source = dataclasses.replace(source, is_reversed=run.pairs.reverse_source if run else False)
    if pretrained.target_tokenizer is not None:
        target = make_side_encoder(pretrained, pretrained.target_tokenizer, lengths[1])
    return PairEncoder(source, target)


def make_side_encoder(pretrained: Pretrained, tokenizer: Path, length: int) -> SourceOrTargetEncoder:
    """Returns the text encoder for the sources or for the targets of a checkpoint, from a tokenizer file."""
    ids = trained_token_ids(pretrained, tokenizer)
    loaded = load_piece_tokenizer(tokenizer, lowercase=pretrained.lowercase)
    begin = special_ids_of_tokenizer(loaded, begin=target_start_piece(pretrained, loaded)).begin
    symbols = SequenceSpecialIds(ids.pad, ids.end, ids.start, begin)
    return SourceOrTargetEncoder(
        loaded, symbols, length, marian=MarianTokenizer(tokenizer, loaded) if is_marian(tokenizer) else None
    )


def single_task_prefix(config: RunConfig, workdir: Path) -> str:
    """Returns the text prefix with which a run was trained; raises InputError if the run has several prefixes."""
    prefixes = sorted(set(config.pairs.prefix)) or ['']
    if len(prefixes) > 1:
        known = ', '.join(map(repr, prefixes))
        raise InputError(f'{workdir} was trained with the prefixes {known}; choose one (--prefix)')
    return prefixes[0]


def score_generated_targets(
    task: TextToTextTask, graph: nnx.GraphDef, params: Any, on_text: Callable[[], None] = lambda: None
) -> dict[str, float | str]:
    """Returns the scores of the generated texts for the evaluated split, such as BLEU, and the search options.

    Pairs that `pairs.overlong` skips are not scored; 'left_out' counts them. Sources that it cuts are read as cut and
    scored against the whole target. 'unended' counts texts that reached the token limit.

    Args:
        task: the run's task, with its pairs.
        graph: the model's graph, laid out for inference.
        params: the model's parameters, laid out for inference.
        on_text: called with each text that is found.
    """
    config, split = task.config, task.config.eval.split
    fields = {name: getattr(config.eval, name) for name in SEARCHED}
    most = config.pairs.target_length
    decoding = DecodingOptions(**fields, batch_size=config.eval.batch_size, max_tokens=most, extra=most)
    written: list[dict[int, str]] = []
    unended = 0
    params = to_host_arrays(params)  # Each process generates all targets, on one of its devices.
    sets, prefixes, encoded = task.sets[split], task.source_prefixes(split), task.encoded(split)
    with jax.default_device(jax.local_devices()[0]):
        for one, prefix, kept in zip(sets, prefixes, encoded, strict=True):
            translator = make_translator(graph, params, task.encoder, decoding, prefix, config)
            pairs, numbers = task.pairs_of_dataset(one), [pair.number for pair in kept]
            found: dict[int, str] = {}
            for place, best in translator.iterate_targets([pairs[number].source for number in numbers]):
                found[numbers[place]] = best[0].text if best else ''
                on_text()
            unended += translator.unended
            if line := translator.unknown.summarize_and_reset():
                logging.getLogger(__name__).warning('%s', line)
            written.append(dict(sorted(found.items())))
    scores = score_generated_texts(sets, [task.pairs_of_dataset(one) for one in sets], written)
    if task.pairs.overlong == 'skip':
        scores['left_out'] = task.overlong[split].count
    return {**scores, 'unended': unended, **decoding.reported_options()}


class UnknownTokenCounter:
    """Counts the unknown tokens of source texts; the count is always 0 if the tokenizer has no unknown token.

    Args:
        parts: returns the pieces of a text, each with the part of the text that the piece encodes.
        vocabulary: the tokenizer with the ids of the pieces.
    """

    def __init__(self, parts: Callable[[str], list[tuple[str, str]]], vocabulary: Tokenizer) -> None:
        self.parts, self.vocabulary = parts, vocabulary
        name = tokens_by_role(vocabulary).get('unknown')
        self.id = None if name is None else vocabulary.token_to_id(name)
        self.count = self.total = 0
        self.words: dict[str, None] = {}  # the first unknown words, without repetitions

    def count_unknown_tokens(self, texts: Sequence[str], tokens: Sequence[np.ndarray]) -> None:
        """Adds the unknown tokens of these texts to the counts; `tokens` are the ids of each text, without special
        tokens.
        """
        self.total += sum(map(len, tokens))
        for text, ids in zip(texts, tokens, strict=True):
            found = int((ids == self.id).sum())
            self.count += found
            if found and len(self.words) < NAMED:
                self.record_unknown_words(text)

    def record_unknown_words(self, text: str) -> None:
        """Adds the unknown words of a text to the list `words`, which holds up to `NAMED` words in all."""
        for piece, part in self.parts(text):
            if self.vocabulary.token_to_id(piece) in (None, self.id) and len(self.words) < NAMED:
                self.words[part.strip()] = None

    def summarize_and_reset(self) -> str:
        """Returns a message about the unknown tokens since the last call, or '' if there were none; sets the counts to
        0.
        """
        count, total, words = self.count, self.total, ', '.join(map(repr, self.words))
        such = f'such as {words}' if count > NAMED == len(self.words) else words
        self.count, self.total, self.words = 0, 0, {}
        return f'{count:,} of {total:,} tokens of the sources are unknown to the tokenizer: {such}' if count else ''
