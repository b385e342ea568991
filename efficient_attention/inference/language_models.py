"""Opens a trained language model, with the units of its texts, from a workdir or a Hugging Face folder."""

from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.data.text.text_units import TextUnits, TokenizerUnits, load_units
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import pretrained_decoder
from efficient_attention.inference.restore import restore_for_inference
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.models.cached_decoding import cache_specs
from efficient_attention.models.decoder import Decoder
from efficient_attention.workdir.checkpoint_reader import LAST
from efficient_attention.workdir.config_file import read_config


class LanguageModel(NamedTuple):
    """A trained decoder, laid out for inference on the first device, with the units of its texts.

    `length` is the number of tokens per training row; None = unknown. `image_shape` is (height, width, channels) of a
    model of images, and empty for text.
    """

    config: ModelConfig
    units: TextUnits
    graph: nnx.GraphDef
    params: Any
    length: int | None = None
    image_shape: tuple[int, ...] = ()


def open_language_model(
    path: Path, checkpoint: str = '', *, generates: bool = False, images: bool = False
) -> LanguageModel:
    """Opens the language model in a workdir or a Hugging Face folder.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint: 'last', 'best', a step or 'average-5'; '' = the best if one is known, else
            the last. A Hugging Face folder has only the last.
        generates: raise InputError first if no cache supports the decoder, before other files are read.
        images: whether a model of images is allowed.

    Raises:
        InputError: the folder has no language model of text, no such checkpoint, or no vocabulary.
    """
    if 'task' not in read_config_json(path):
        return imported_language_model(path, open_pretrained(path, '' if checkpoint == LAST else checkpoint))
    run = read_config(path)
    if run.task != LANGUAGE_MODELLING:
        raise InputError(f'{path} holds a run of the task {run.task!r}; generating text needs language_modelling')
    if run.data.units == 'pixels' and not images:
        raise InputError(f'{path} holds a model of images; only text can be generated')
    if generates:
        cache_specs(run.model, 1)
    units = read_vocabulary(run.data.units, path)
    graph, params = restore_for_inference(path, run, checkpoint, lambda: Decoder(run.model, rngs=nnx.Rngs(0)))
    image_shape = run.data.image_shape if run.data.units == 'pixels' else ()
    return LanguageModel(run.model, units, graph, params, run.data.length, image_shape)


def imported_language_model(path: Path, pretrained: Pretrained) -> LanguageModel:
    """Returns the language model of an opened Hugging Face folder; raises InputError as `open_language_model` does."""
    if pretrained.problem != LANGUAGE_MODELLING:
        raise InputError(f'{path} was trained for {pretrained.problem!r}; generating text needs a language model')
    units = imported_units(path, pretrained)
    graph, state = nnx.split(pretrained_decoder(pretrained))
    return LanguageModel(pretrained.model, units, graph, nnx.to_pure_dict(state))


def imported_units(path: Path, pretrained: Pretrained) -> TokenizerUnits:
    """Returns the vocabulary of an opened Hugging Face folder; raises InputError if it is missing or too large."""
    if pretrained.tokenizer is None:
        raise InputError(f'{path}: no tokenizer there (tokenizer.json, or vocab.json with merges.txt)')
    loaded = load_tokenizer(pretrained.tokenizer, lowercase=pretrained.lowercase)
    units = TokenizerUnits(loaded, str(pretrained.tokenizer))
    if units.size > pretrained.model.vocab_size:
        size = pretrained.model.vocab_size
        raise InputError(f'{pretrained.tokenizer}: the tokenizer has {units.size} tokens; the model has {size}')
    return units


def read_vocabulary(kind: str, workdir: Path) -> TextUnits:
    """Returns the vocabulary of a run, read from its workdir; raises InputError if the files are missing or damaged."""
    try:
        return load_units(kind, workdir)
    except Exception as error:  # the tokenizers package raises `Exception`, not a subclass
        line = ' '.join(str(error).split())
        raise InputError(f'{workdir}: its vocabulary of {kind} cannot be read ({line})') from None
