"""Defines `Pretrained`, a trained model opened from a folder or workdir. Tasks start from it, and `save_pretrained`
writes it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained model opened from a folder or workdir: an encoder with its heads, an encoder-decoder, or a decoder.

    Parameters are loaded only when `params` is called.
    """

    model: ModelConfig
    head: HeadConfig  # The head's kind is 'none' for an encoder without a prediction head, or for a pretraining model.
    labels: tuple[str, ...]  # label names in the order of the model's outputs; () = the outputs have no names
    # `problem` is a value of `ExamplesConfig.problem` or `SEVERAL`, 'fill_mask', 'text_to_text', 'language_modelling'
    # (only a decoder) or 'none' (no head).
    problem: str
    family: str  # Hugging Face `model_type`, a key of `FAMILIES`; '' for a model from a workdir
    tokenizer: Path | None  # path of the tokenizer's file
    lowercase: bool
    # `params` returns the parameters as nested dicts of float32 NumPy arrays, by this project's module paths.
    # The dicts contain 'encoder' and, if present, 'masked_lm', 'pooler', 'pair', 'head' and 'detector' (of ELECTRA).
    # The dicts of an encoder-decoder also contain 'decoder', with the embedding table that encoder and decoder share.
    # The dicts of a language model contain only 'decoder'.
    params: Callable[[], dict[str, Any]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # content of the imported config.json
    # content of the imported generation_config.json
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # fields of the run's `examples` config on which predictions depend, as exported under the name OUR_EXAMPLES
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # fields of the run's `pairs` config on which predictions depend, as exported under the name OUR_PAIRS
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # decision thresholds that the original run chose on its validation set
    thresholds: Callable[[], Mapping[str, float]] = dict
    origin: Callable[[], str] = str  # a short text that says where the parameters come from
    run: RunConfig | None = None  # config of the training run, for a model from a workdir
    # path of the targets' tokenizer file, if targets have another tokenizer than sources
    target_tokenizer: Path | None = None
    # `codes` returns the parameters with int8 codes. Only compact exports and compressed-tensors folders have it.
    codes: Callable[[], dict[Any, Any]] | None = None
