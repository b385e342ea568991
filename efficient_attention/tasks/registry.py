"""Chooses and makes the training task that a config describes."""

import hashlib
import importlib
import json
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from efficient_attention.config.run import RunConfig
from efficient_attention.data.text.text_units import TextUnits
from efficient_attention.errors import InputError
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.tasks.task import Task

# Task name in a config -> class. Dotted paths let a run import only the module of its task.
TASKS = {
    'pretraining': 'efficient_attention.tasks.pretraining.PretrainingTask',
    'language_modelling': 'efficient_attention.tasks.language_modelling.LanguageModellingTask',
    'fine_tuning': 'efficient_attention.tasks.fine_tuning.FineTuningTask',
    'text_to_text': 'efficient_attention.tasks.text_to_text.TextToTextTask',
}
# masked language modelling on rows of Long Range Arena
MASKED_ROWS = 'efficient_attention.tasks.arena_pretraining.ArenaPretrainingTask'
# text-to-text training with pairs that noise makes from documents
DENOISING = 'efficient_attention.tasks.denoising.DenoisingTask'


def make_task(config: RunConfig, given: EncodedExamples | TextUnits | None = None) -> Task:
    """Returns the training task that the config describes, with prepared data.

    Process 0 prepares the data first; the other processes then find the data in the cache.

    Args:
        config: the run's config.
        given: the examples of a fine-tuning task, if they are already loaded; or the vocabulary of a trained language
            model that is evaluated on other text than its own.

    Raises:
        InputError: data, tokenizer or sizes do not fit the config, or the processes have different data or tokenizers.
    """
    if jax.process_count() == 1:
        return _build_task(config, given)
    task = _build_task(config, given) if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices('prepared')
    task = task or _build_task(config, given)
    digest = hashlib.sha256(json.dumps(task.fingerprint, sort_keys=True).encode()).digest()
    digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
    if (digests != digests[0]).any():
        raise InputError('the processes of this run have different corpora or tokenizers; let them see the same data')
    return task


def task_type(config: RunConfig) -> type[Task]:
    """Returns the class of the training task that the config describes."""
    path = TASKS[config.task]
    if config.has_arena_rows:
        path = MASKED_ROWS
    elif config.has_noise:
        path = DENOISING
    module, name = path.rsplit('.', 1)
    return getattr(importlib.import_module(module), name)


def _build_task(config: RunConfig, given: EncodedExamples | TextUnits | None) -> Task:
    kind: Callable[..., Task] = task_type(config)
    return kind(config) if given is None else kind(config, given)
