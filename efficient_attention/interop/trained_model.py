"""A trained model from outside or from a workdir, as one value that tasks start from and `save_pretrained` writes."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig


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
