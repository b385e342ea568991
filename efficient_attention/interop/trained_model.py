"""The record of a trained model, from a folder or a workdir: tasks start from it and `save_pretrained` writes it."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained encoder with its checkpoint's heads, or an encoder-decoder.

    Parameters are loaded only when `params` is called.
    """

    model: ModelConfig
    head: HeadConfig  # kind 'none' for a bare encoder or a pretraining model
    labels: tuple[str, ...]  # label names in the order of the outputs; () = unnamed
    # a value of `ExamplesConfig.problem`, 'fill_mask', 'none' for a bare encoder, 'text_to_text', or one of `SEVERAL`
    problem: str
    family: str  # a `model_type` of `FAMILIES`; '' for a workdir
    tokenizer: Path | None  # the tokenizer's file
    lowercase: bool
    # Nested dicts of float32 NumPy arrays by this project's module paths: 'encoder', and if present 'masked_lm',
    # 'pooler', 'pair', 'head' and 'detector' (ELECTRA's discriminator). An encoder-decoder also has 'decoder', with the
    # table that both stacks share.
    params: Callable[[], dict[str, Any]]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the keys of its config.json
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the keys of its generation_config.json
    examples: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of OUR_EXAMPLES; others: default
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # fields of OUR_PAIRS, from a run or its export
    thresholds: Callable[[], Mapping[str, float]] = dict  # chosen on the dev files of the original run
    origin: Callable[[], str] = str  # the source of the parameters, as a short text
    run: RunConfig | None = None  # the config of a workdir's run
    target_tokenizer: Path | None = None  # the targets' tokenizer file, if it is another one
    # The parameters with int8 codes, from a compact export or compressed-tensors folder; None for other models.
    codes: Callable[[], dict[Any, Any]] | None = None
