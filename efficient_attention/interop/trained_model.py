"""Defines `Pretrained`, a trained model opened from a folder or workdir, from which tasks start and which
`save_pretrained` writes.
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
    """A trained model opened from a folder or workdir: an encoder with its heads, or an encoder-decoder.

    Parameters are loaded only when `params` is called.
    """

    model: ModelConfig
    head: HeadConfig  # The kind is 'none' for an encoder without a head, or for a pretraining model.
    labels: tuple[str, ...]  # label names in the order of the model's outputs; () = the outputs have no names
    # A value of `ExamplesConfig.problem` or `SEVERAL`, 'fill_mask', 'text_to_text', or 'none' if there is no head.
    problem: str
    family: str  # Hugging Face `model_type`, a key of `FAMILIES`; '' for a model from a workdir
    tokenizer: Path | None  # path of the tokenizer's file
    lowercase: bool
    # `params` returns the parameters as nested dicts of float32 NumPy arrays, by this project's module paths.
    # The dicts contain 'encoder' and, if present, 'masked_lm', 'pooler', 'pair', 'head' and 'detector' (of ELECTRA).
    # The dicts of an encoder-decoder also contain 'decoder', with the embedding table that encoder and decoder share.
    params: Callable[[], dict[str, Any]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # content of the imported config.json
    # content of the imported generation_config.json
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # values of fields in OUR_EXAMPLES; other fields have their defaults
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # values of fields in OUR_PAIRS, from a run or its export
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # decision thresholds that the original run chose on its validation set
    thresholds: Callable[[], Mapping[str, float]] = dict
    origin: Callable[[], str] = str  # a short text that says where the parameters come from
    run: RunConfig | None = None  # config of the training run, for a model from a workdir
    # path of the targets' tokenizer file, if targets have another tokenizer than sources
    target_tokenizer: Path | None = None
    # Returns the parameters with int8 codes. None unless the model is a compact export or a compressed-tensors folder.
    codes: Callable[[], dict[Any, Any]] | None = None
