"""Evaluates a checkpoint of a run's workdir on all held-out examples, each exactly once; a language model also on text
that the caller names.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import jax

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluated_models import open_evaluated_model
from efficient_attention.inference.keyword_option_types import EvalOptions
from efficient_attention.inference.seq2seq_generator import unsearchable_reason
from efficient_attention.inference.translator import score_generated_targets
from efficient_attention.interop.workdir_import import checkpoint_thresholds
from efficient_attention.models.head_gates import Head, gates_without, with_head_gates
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from efficient_attention.processes.peer_monitor import check_facts_agree_with_peers
from efficient_attention.processes.watchdog import EVALUATING, Watchdog
from efficient_attention.tasks.fine_tuning import FineTuningTask
from efficient_attention.tasks.text_to_text import TextToTextTask
from efficient_attention.workdir.checkpoint_reader import LAST


def evaluate_workdir(
    workdir: Path,
    *,
    checkpoint: str = LAST,
    batch_size: int | None = None,
    source: str | None = None,
    mask_heads: Sequence[Head] = (),
    before_search: Callable[[dict[str, float | str]], None] = lambda _: None,
    **protocol: Unpack[EvalOptions],
) -> dict[str, float | str]:
    """Returns a checkpoint's held-out metrics, its training step as 'step', and the settings of the evaluation.

    For text-to-text models, metrics of generated texts are included, unless no search supports the decoder.

    The metrics are equal up to rounding for every batch size and device count. A language model with memory is the
    exception: its text is cut into as many parts as the batch size, and each part begins with empty memory.

    Args:
        workdir: a folder that `train` wrote, or a Hugging Face folder of a language model (GPT-2).
        checkpoint: 'last', 'best' by the config's `checkpoint.best_metric`, a step's number, or 'average-5' for the
            mean of the last 5. After averaging, 'averaged_steps' lists the steps.
        batch_size: rows at a time, over all devices; None = the config's, or 8 for a Hugging Face folder.
        source: text to evaluate a language model on, spelled as `data.source`, in place of the run's held-out text. A
            Hugging Face folder needs one. The result then has no metrics of a unigram model.
        mask_heads: self-attention heads whose values are zeroed: pairs of layer and head, numbers from 0.
        before_search: called with the metrics known before the slower text search; not called if no text is searched.
        protocol: fields of `EvalConfig` that replace the config's, such as how a language model is evaluated.

    Raises:
        InputError: in the same cases as `restore`; also if the checkpoint does not exist, no text is held out, or the
            batch does not divide over the devices; or `source`, `mask_heads` or an option of `protocol` does not fit
            the model.
    """
    config, restore_with = open_evaluated_model(workdir, checkpoint, source, protocol)
    batch_size = config.eval.batch_size if batch_size is None else batch_size
    config = dataclasses.replace(
        config,
        mesh=mesh_config_for_devices(config.mesh, jax.device_count()),
        eval=dataclasses.replace(config.eval, batch_size=batch_size, **protocol),
    )
    if not config.has_evaluation_data:
        raise InputError(f'{workdir}: {no_validation_set_message(config)}')
    check_facts_agree_with_peers({'config': to_dict(config)})
    evaluation, params, step, averaged = restore_with(config)
    check_facts_agree_with_peers({'checkpoint': averaged or step})
    if isinstance(evaluation.task, FineTuningTask) and config.eval.split == 'test':
        evaluation.task.set_thresholds(checkpoint_thresholds(workdir, config, checkpoint if averaged else str(step)))
    for note in evaluation.task.notes:
        logging.getLogger(__name__).warning('%s', note)
    graph, params = lay_out_for_inference(evaluation.graph(), params)
    if mask_heads:
        graph, params = with_head_gates(graph, params, gates_without(config.model, mask_heads))
    eval_step = evaluation.make_jitted_step(graph)
    task = evaluation.task
    with Watchdog(config.train.stall_seconds, workdir) as watchdog:
        on_batch = functools.partial(watchdog.note_progress, step or 0, EVALUATING)
        metrics = evaluation.metrics(eval_step, params, on_batch=on_batch)
        steps: dict[str, float | str] = {} if step is None else {'step': step}
        steps |= {'averaged_steps': ', '.join(map(str, averaged))} if averaged else {}
        masked = {'masked_heads': ', '.join(f'{layer}.{head}' for layer, head in mask_heads)} if mask_heads else {}
        found = {**steps, **task.evaluation_protocol, **masked, **metrics}
        if not isinstance(task, TextToTextTask):
            return found
        if reason := unsearchable_reason(config.model):
            logging.getLogger(__name__).warning('no text is generated: %s', reason)
            return found
        before_search(found)
        return found | score_generated_targets(task, graph, params, on_batch)


def no_validation_set_message(config: RunConfig) -> str:
    """Returns the error message for a run without the held-out data that an evaluation needs."""
    if config.task == 'text_to_text' and not config.has_noise:
        split = 'test' if config.eval.split == 'test' else 'held_out'
        way = '; use --split=test' if split == 'held_out' and config.pairs.test else ''
        return f'pairs.{split} is empty, so nothing can be evaluated{way}'
    way = 'use --split=test' if config.data.test else 'train with data.held_out above 0 in a new --workdir'
    return f'no text is held out (data.held_out=0), so nothing can be evaluated; {way}'


def mesh_config_for_devices(config: MeshConfig, devices: int) -> MeshConfig:
    """Returns a mesh config with the run's fsdp, sequence and tensor axes. If their product does not divide the device
    count, returns a config with only a data axis.
    """
    if devices % (config.fsdp * config.sequence * config.tensor):
        return MeshConfig()
    return dataclasses.replace(config, data=0)
