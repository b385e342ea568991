"""Makes the task that a config describes."""

import hashlib
import importlib
import json
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.tasks.task import Task

# Class of each task by its name in a config; dotted paths, so that a run imports only the module of its task.
TASKS = {
    'pretraining': 'efficient_attention.tasks.pretraining.PretrainingTask',
    'language_modelling': 'efficient_attention.tasks.language_modelling.LanguageModellingTask',
    'fine_tuning': 'efficient_attention.tasks.fine_tuning.FineTuningTask',
    'text_to_text': 'efficient_attention.tasks.text_to_text.TextToTextTask',
}
MASKED_ROWS = 'efficient_attention.tasks.arena_pretraining.ArenaPretrainingTask'  # masked-LM on long-range rows
DENOISING = 'efficient_attention.tasks.denoising.DenoisingTask'  # text-to-text with pairs made by noise


def make_task(config: RunConfig, examples: EncodedExamples | None = None) -> Task:
    """Returns the config's task with its data prepared.

    Process 0 prepares the data first; the other processes then find the data in the cache.

    Args:
        config: the run's config.
        examples: the examples of a fine-tuning task, if they are already loaded.

    Raises:
        InputError: data, tokenizer or sizes do not fit the config, or the processes have different data or tokenizers.
    """
    if jax.process_count() == 1:
        return _build_task(config, examples)
    task = _build_task(config, examples) if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices('prepared')
    task = task or _build_task(config, examples)
    digest = hashlib.sha256(json.dumps(task.fingerprint, sort_keys=True).encode()).digest()
    digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
    if (digests != digests[0]).any():
        raise InputError('the processes of this run have different corpora or tokenizers; let them see the same data')
    return task


def task_type(config: RunConfig) -> type[Task]:
    """Returns the class of the config's task."""
    path = TASKS[config.task]
    if config.has_arena_rows:
        path = MASKED_ROWS
    elif config.has_noise:
        path = DENOISING
    module, name = path.rsplit('.', 1)
    return getattr(importlib.import_module(module), name)


def _build_task(config: RunConfig, examples: EncodedExamples | None) -> Task:
    kind: Callable[..., Task] = task_type(config)
    return kind(config) if examples is None else kind(config, examples)
