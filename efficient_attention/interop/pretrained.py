"""A trained model from outside or from a workdir, as one value that tasks start from and `save_pretrained` writes."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.fields import unread_fields
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.preparation.cache_folder import TARGET_TOKENIZER, TOKENIZER
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.text_to_text import TextToTextIds, text_to_text_ids, with_ends
from efficient_attention.errors import InputError
from efficient_attention.interop.codes import Flat, as_flat, as_tree, coded
from efficient_attention.interop.compressed_tensors import (
    check_compressible,
    check_readable,
    compressed_params,
    is_compressed,
    kernels_of,
    quantization_config,
    read_codes,
    scales,
)
from efficient_attention.interop.config_fields import OUR_EXAMPLES, OUR_PAIRS, SHIFTED
from efficient_attention.interop.config_in import CONFIG, TEXT_TO_TEXT, Description, describe, read_values
from efficient_attention.interop.config_out import QUANTIZED, config_values
from efficient_attention.interop.factors import factored, products
from efficient_attention.interop.families import FAMILIES, Family
from efficient_attention.interop.from_workdir import (
    checkpoint_thresholds,
    checkpoint_words,
    encoder_run,
    workdir_params,
)
from efficient_attention.interop.generation_config import (
    GENERATION,
    Forced,
    forced_tokens,
    generation_of_run,
    generation_values,
    ids_as_trained,
    with_ids,
)
from efficient_attention.interop.output_layers import with_output, with_repeated
from efficient_attention.interop.parameters import (
    Parts,
    has_all,
    parameter_shapes,
    plain_names,
    read_tensors,
    tensors_of,
    written_tensors,
)
from efficient_attention.interop.safetensors_files import INDEX, TensorFolder, check_tensor_files, write_tensors
from efficient_attention.interop.small_folder import is_small, small_fields
from efficient_attention.interop.tokenizer_files import (
    CARRIED,
    PIECES,
    carry_tokenizer,
    check_numbered,
    is_lowercase,
    padding_id,
    tokenizer_file,
    vocabulary_of_pieces,
)
from efficient_attention.interop.uneven_layers import even, padded, unpadded
from efficient_attention.processes.phases import WRITING, note_phase
from efficient_attention.whole_files import whole_folder
from efficient_attention.workdir.seal import damage, has_seal, write_seal

BEGIN = {'bart': '<s>'}  # what every text of a family of released models begins with
SEALED = 'exported model'  # in the line of its seal, which `sha256sum --check` reads, too
# What is read of a sealed folder may not be added to it; other files, such as README.md, may.
READ_NAMES = (CONFIG, INDEX, *CARRIED)
READ_KINDS = ('*.safetensors', PIECES)
ADVICE = 'delete the folder and export it again, or, if the change is meant, remove its seal (seal-*.sha256)'


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained encoder with the heads that its checkpoint has, or an encoder-decoder.

    Its numbers are read when they are asked for.
    """

    model: ModelConfig
    head: HeadConfig  # kind 'none' for a bare encoder or a pretraining model
    labels: tuple[str, ...]  # in the order of the outputs; () where they have no names
    # as `ExamplesConfig.problem`; 'fill_mask', 'none' of a bare encoder, 'text_to_text', or one of `SEVERAL`
    problem: str
    family: str  # a `model_type` of `FAMILIES`; '' for a workdir's
    tokenizer: Path | None  # its file
    lowercase: bool
    # Nested dicts of float32 NumPy arrays by the paths of our modules: 'encoder', and what there is of 'masked_lm',
    # 'pooler', 'pair', 'head' and, of ELECTRA's discriminator, 'detector'; of an encoder-decoder 'decoder', which has
    # the table that both stacks share.
    params: Callable[[], dict[str, Any]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the keys of its config.json
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the keys of its generation_config.json
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of OUR_EXAMPLES; others: default
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # fields of OUR_PAIRS, of a run or its export
    thresholds: Callable[[], Mapping[str, float]] = dict  # chosen on the dev files of the run that it is from
    origin: Callable[[], str] = str  # where the parameters lie, in a few words
    run: RunConfig | None = None  # the config of a workdir's run
    target_tokenizer: Path | None = None  # the file of that of targets, where they have another one
    # The parameters as a small model's folder holds them, int8 codes among them; None of any other.
    codes: Callable[[], dict[Any, Any]] | None = None


def open_pretrained(path: Path, checkpoint: str = '') -> Pretrained:
    """The checkpoint of a Hugging Face folder or of a workdir; compares a folder that has a seal with it.

    Args:
        path: the folder.
        checkpoint: of a workdir: 'last', 'best', a step or 'average-5'; '' = best where its config names a metric.

    Raises:
        InputError: the folder has no config.json, or one that we do not follow, or no safetensors, or differs from its
            seal; `params` raises it where tensors are missing, left over or wrong-sized.
    """
    check_export(path)
    values = read_values(path)
    if 'task' in values:
        return _of_workdir(path, checkpoint)
    if checkpoint:
        raise InputError(f'{path} has one set of parameters and no checkpoint {checkpoint!r}: it is no workdir')
    if is_small(values):
        check_tensor_files(path)
        return Pretrained(**small_fields(path, values))
    try:
        known = describe(values)
        check_readable(values, known.model)
    except InputError as error:
        raise InputError(f'{path / CONFIG}: {error}') from None
    check_tensor_files(path)
    known = with_output(path, known, values)
    return Pretrained(
        model=known.model,
        head=known.head,
        labels=known.labels,
        problem=known.problem,
        family=known.family.model_type,
        tokenizer=tokenizer_file(path),
        lowercase=is_lowercase(path, known.family.model_type),
        params=lambda: _read_params(path, known),
        extra=values,
        generation=generation_values(path) if known.family.decoder else {},
        examples=known.examples,
        pairs=known.pairs,
        thresholds=lambda: known.thresholds,
        origin=lambda: str(path),
        codes=(lambda: _read_compressed(path, known)) if is_compressed(values) else None,
    )


def _of_workdir(path: Path, checkpoint: str) -> Pretrained:
    config = encoder_run(path)
    is_fine_tuned = config.task == 'fine_tuning'
    file = path / TOKENIZER
    problems = {'fine_tuning': config.examples.problem, 'text_to_text': TEXT_TO_TEXT, 'language_modelling': 'none'}
    return Pretrained(
        model=as_encoder(config.model) if config.task == 'language_modelling' else config.model,
        head=config.head if is_fine_tuned else HeadConfig(),
        labels=config.examples.labels if is_fine_tuned else (),
        problem=problems.get(config.task, 'fill_mask'),
        family='',
        tokenizer=file if file.is_file() else None,
        lowercase=config.data.lowercase,
        params=lambda: workdir_params(path, config, checkpoint),
        examples={
            name: getattr(config.examples, name)
            for name in OUR_EXAMPLES
            if getattr(config.examples, name) != getattr(ExamplesConfig(), name)
        },
        pairs={name: getattr(config.pairs, name) for name in OUR_PAIRS} if config.task == TEXT_TO_TEXT else {},
        thresholds=lambda: checkpoint_thresholds(path, config, checkpoint),
        origin=lambda: f'{path} {checkpoint_words(path, config, checkpoint)}',
        run=config,
        target_tokenizer=path / TARGET_TOKENIZER if config.pairs.target_tokenizer else None,
    )


def as_encoder(model: ModelConfig) -> ModelConfig:
    """A language model's config without what its output layer alone reads."""
    return dataclasses.replace(
        model, **{name: unread for name, (_, unread) in unread_fields(model, 'fine_tuning').items()}
    )


def check_no_codes(pretrained: Pretrained) -> None:
    """Raises InputError where a model's numbers are codes, which another form of it would undo."""
    if pretrained.codes is not None and pretrained.model.quantization != 'none':
        raise InputError(
            f'it holds codes already, with model.quantization {pretrained.model.quantization!r}; take the model that '
            'it was made of'
        )


def open_encoder(path: Path, checkpoint: str = '') -> Pretrained:
    """As `open_pretrained`, of what has no decoder; raises InputError for an encoder-decoder too."""
    pretrained = open_pretrained(path, checkpoint)
    check_encoder(path, pretrained)
    return pretrained


def check_encoder(path: Path, pretrained: Pretrained) -> None:
    """Raises InputError for an encoder-decoder; `path` is for the message."""
    if pretrained.problem == TEXT_TO_TEXT:
        raise InputError(f'{path} holds an encoder-decoder, and an encoder alone is needed')


def _read_params(path: Path, known: Description) -> dict[str, Any]:
    folder = TensorFolder(path)
    parts = parts_in(known, plain_names(known.family, folder.shapes))
    params = read_tensors(known.family, tensors_of(known.family, even(known.model), parts), folder)
    try:
        found = unpadded(known.model, params)
        return factored(found, parameter_shapes(known.model, parts)) if known.model.ranks else found
    except InputError as error:
        raise InputError(f'{path}: {error}') from None


def _read_compressed(path: Path, known: Description) -> dict[Any, Any]:
    """The parameters as codes, where the folder holds those of kernels."""
    folder = TensorFolder(path)
    flat = coded(as_flat(_read_params(path, known)), known.model, known.head)
    parts = parts_in(known, plain_names(known.family, folder.shapes))
    tensors = tensors_of(known.family, known.model, parts)
    return as_tree(read_codes(flat, kernels_of(known.model, known.head), tensors, folder, known.family))


def parts_in(known: Description, found: Mapping[str, str]) -> Parts:
    """What a file has beside the encoder: what its architecture must have, and heads of pretraining that are there."""
    family, ending = known.family, known.ending
    if family.decoder:
        return Parts(has_decoder=True)
    if known.head.kind != 'none':
        return Parts(known.head)
    if family.detector and ending == 'ForPreTraining':
        return Parts(has_detector=True)
    is_both = ending == 'ForPreTraining' and bool(family.pair)
    has_pair = bool(family.pair) and (
        is_both or ending == 'ForNextSentencePrediction' or has_all(family, {'pair': family.pair}, found)
    )
    return Parts(
        has_masked_lm=is_both or ending == 'ForMaskedLM' or has_all(family, family.masked_lm, found),
        has_pooler=bool(family.pooler) and (has_pair or has_all(family, {'pooler': family.pooler}, found)),
        has_pair=has_pair,
    )


def save_pretrained(
    folder: Path, pretrained: Pretrained, tokenizer: Path | None = None, *, compresses: bool = False
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files, as transformers reads them, and their seal.

    The folder appears when all is written.

    Args:
        folder: must be missing or empty.
        pretrained: as `open_pretrained` gives it, or made for a model in memory.
        tokenizer: its file; None = `pretrained.tokenizer`.
        compresses: writes the kernels of a model that rounds them as int8, and its tables as float16, in the names
            that transformers loads with the package compressed-tensors.

    Raises:
        InputError: no Hugging Face family has such a model, it has two tokenizers or reads sources in reverse, or there
            is something in the folder.
        RunError: the disk is full.
    """
    if pretrained.target_tokenizer is not None:
        raise InputError('pairs.target_tokenizer: the model has two tokenizers; a Hugging Face folder holds one')
    if pretrained.run is not None and pretrained.run.pairs.reverse_source:
        raise InputError('pairs.reverse_source is True; no tokenizer of a Hugging Face folder reverses texts')
    if compresses:
        check_compressible(pretrained.model, pretrained.head)
    params = padded(pretrained.model, products(pretrained.params()))
    tokenizer = pretrained.tokenizer if tokenizer is None else tokenizer
    values = config_values(
        pretrained.model,
        pretrained.head,
        frozenset(params),
        family=pretrained.family,
        labels=pretrained.labels,
        extra=pretrained.extra,
        kept={'examples': pretrained.examples, 'thresholds': pretrained.thresholds(), 'pairs': pretrained.pairs},
    )
    family = FAMILIES[values['model_type']]
    check_padding(family, pretrained.model, tokenizer)
    generation = pretrained.generation
    if family.decoder and tokenizer is not None:
        values = with_ids(values, trained_ids(pretrained, tokenizer))
        generation = generation or generation_of(pretrained, tokenizer)
    listed = tensors_of(family, even(pretrained.model), parts_from(pretrained, frozenset(params)))
    is_bare = values['architectures'][0] == f'{family.stem}Model'
    codes = codes_of(pretrained) if compresses else {}
    params = compressed_params(params, codes) if compresses else params
    tensors = written_tensors(family, listed, params, is_bare=is_bare)
    if compresses:
        tensors |= scales(codes, family, listed, is_bare=is_bare)
        values[QUANTIZED] = quantization_config(codes, family, listed, is_bare=is_bare)
    tensors = with_repeated(family.model_type, pretrained.model, tensors)
    note_phase(WRITING)
    with whole_folder(folder) as partial:
        write_tensors(partial, tensors, is_stored=compresses)
        longest = pretrained.model.position_limit or pretrained.model.max_length
        types = pretrained.model.token_types > 1
        carry_tokenizer(tokenizer, partial, longest, has_types=types, written=as_trained(pretrained, tokenizer))
        write_keys(partial / CONFIG, values)
        if generation:
            write_keys(partial / GENERATION, generation)
        seal_export(partial)


def codes_of(pretrained: Pretrained) -> Flat:
    """The parameters of a model that rounds them by path, int8 codes with their scales among them."""
    if pretrained.codes is not None:
        return as_flat(pretrained.codes())
    return coded(as_flat(pretrained.params()), pretrained.model, pretrained.head)


def write_keys(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON file of these keys."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')


def trained_ids(pretrained: Pretrained, tokenizer: Path) -> TextToTextIds:
    """The ids that an encoder-decoder was trained with; raises InputError where the tokenizer does not fit it.

    The tokenizer is that of both sides, or of either where there are two.
    """
    check_numbered(pretrained.family, tokenizer)
    loaded = vocabulary_of_pieces(tokenizer, lowercase=pretrained.lowercase)
    run = pretrained.run if pretrained.target_tokenizer in (None, tokenizer) else None
    ids = text_to_text_ids(loaded, str(tokenizer), start=run.pairs.start if run else '')
    is_target = tokenizer == pretrained.target_tokenizer
    ids.check_within(pretrained.model.decoder.vocab_size if is_target else pretrained.model.vocab_size)
    return ids_as_trained(ids, pretrained.extra, pretrained.generation)


def begin_of(pretrained: Pretrained, tokenizer: Tokenizer) -> str:
    """The piece before every text of an encoder-decoder; '' = none.

    A run and its export say it; a released BART has what all of them have.
    """
    if pretrained.pairs:
        return pretrained.pairs.get('begin', '')
    begin = BEGIN.get(pretrained.family, '')
    return begin if tokenizer.token_to_id(begin) is not None else ''


def forced_of(pretrained: Pretrained, tokenizer: Path) -> Forced:
    """The tokens that every target of an encoder-decoder has; raises InputError where a file says another end."""
    ids = trained_ids(pretrained, tokenizer)
    if pretrained.run is None:
        return forced_tokens(ids, pretrained.extra, pretrained.generation)
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    first = loaded.token_to_id(begin_of(pretrained, loaded)) if begin_of(pretrained, loaded) else None
    return Forced(-1 if first is None else first)


def generation_of(pretrained: Pretrained, tokenizer: Path) -> dict[str, Any]:
    """The keys of generation_config.json of a run; empty without one."""
    if pretrained.run is None:
        return {}
    return generation_of_run(trained_ids(pretrained, tokenizer), forced_of(pretrained, tokenizer).first)


def as_trained(pretrained: Pretrained, tokenizer: Path | None) -> str:
    """A tokenizer.json that gives a text the ids that a run from text to text trained on; '' without such a run."""
    if pretrained.problem != TEXT_TO_TEXT or pretrained.run is None or tokenizer is None:
        return ''
    loaded = load_tokenizer(tokenizer, lowercase=pretrained.lowercase, is_text_to_text=True)
    end = trained_ids(pretrained, tokenizer).end
    return with_ends(loaded, begin=pretrained.run.pairs.begin, end=end).to_str(pretty=True)


def check_padding(family: Family, model: ModelConfig, tokenizer: Path | None) -> None:
    """Raises InputError where transformers would count positions from another place, as it does by the padding's id."""
    if family.model_type not in SHIFTED or tokenizer is None or tokenizer.suffix != '.json':
        return
    pad = padding_id(tokenizer)
    if pad is not None and pad != model.position_offset - 1:
        raise InputError(
            f'model.position_offset is {model.position_offset}; {family.model_type} needs {pad + 1}, as the id of '
            f'padding in {tokenizer} is {pad}'
        )


def parts_from(pretrained: Pretrained, names: frozenset[str]) -> Parts:
    """What a model has beside its encoder, by the names of its groups of parameters."""
    if pretrained.head.kind != 'none':
        return Parts(pretrained.head)
    return Parts(
        has_masked_lm='masked_lm' in names,
        has_pooler='pooler' in names,
        has_pair='pair' in names,
        has_detector='detector' in names,
        has_decoder='decoder' in names,
    )


def seal_export(folder: Path) -> None:
    """Writes the seal of a folder in which nothing changes any more; raises OSError."""
    write_seal(folder, SEALED)


def check_export(folder: Path) -> None:
    """Raises InputError, which names the first file, where a folder is sealed and not what was written."""
    if has_seal(folder) and (found := damage(folder, SEALED, may_be_added=may_be_added)):
        raise InputError(f'{folder} is damaged: {found}; {ADVICE}')


def may_be_added(name: str) -> bool:
    """Whether a file of this name in the folder is one that is not read."""
    return name not in READ_NAMES and not any(Path(name).match(kind) for kind in READ_KINDS)
