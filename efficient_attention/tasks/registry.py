"""From a config to its task."""

import hashlib
import json
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.tasks.denoising import DenoisingTask
from efficient_attention.tasks.fine_tuning import EncodedExamples, FineTuningTask
from efficient_attention.tasks.language_modelling import LanguageModellingTask
from efficient_attention.tasks.masked_rows import MaskedRowsTask
from efficient_attention.tasks.pretraining import PretrainingTask
from efficient_attention.tasks.task import Task
from efficient_attention.tasks.text_to_text import TextToTextTask

TASKS: dict[str, type[Task]] = {
    'pretraining': PretrainingTask,
    'language_modelling': LanguageModellingTask,
    'fine_tuning': FineTuningTask,
    'text_to_text': TextToTextTask,
}


def make_task(config: RunConfig, examples: EncodedExamples | None = None) -> Task:
    """The config's task with its data prepared: in the first process, then in all others, which find it in the cache.

    Args:
        config: of the run.
        examples: of a fine-tuning task, where they are read already.

    Raises:
        InputError: data, tokenizer or sizes do not serve, or the processes have different ones.
    """
    if jax.process_count() == 1:
        return _task(config, examples)
    task = _task(config, examples) if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices('prepared')
    task = task or _task(config, examples)
    digest = hashlib.sha256(json.dumps(task.fingerprint, sort_keys=True).encode()).digest()
    digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
    if (digests != digests[0]).any():
        raise InputError('the processes of this run have different corpora or tokenizers; let them see the same data')
    return task


def task_type(config: RunConfig) -> type[Task]:
    """The class of the config's task."""
    if config.has_arena_rows:
        return MaskedRowsTask
    return DenoisingTask if config.has_noise else TASKS[config.task]


def _task(config: RunConfig, examples: EncodedExamples | None) -> Task:
    kind: Callable[..., Task] = task_type(config)
    return kind(config) if examples is None else kind(config, examples)
