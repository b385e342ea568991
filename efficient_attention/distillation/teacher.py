"""Runs the teacher of a distillation run: one frozen model or an ensemble, whose outputs are added to each batch on the
devices.

The teacher runs without dropout and gradients. Its parameters are an argument of the jitted function, not a part of the
training state.
The checks at the end of this file compare the teacher's inputs, outputs and hidden states with the task and with the
student.
"""

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.distill import HEADS, MAPPED
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.layer_numbers import teacher_layers_of_student
from efficient_attention.config.mesh import check_sequence_parallel
from efficient_attention.config.model import ModelConfig, check_packed_documents
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import match_tree_structure
from efficient_attention.interop.pretrained import Pretrained, open_encoder
from efficient_attention.interop.tokenizer_files import check_combinable, check_same_vocabulary
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.quantized import store_int8_codes
from efficient_attention.models.sharding import abstract_arrays, path_name
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.objectives.distillation import Distillation
from efficient_attention.objectives.fine_tuning import FineTuning
from efficient_attention.objectives.objective import Batch
from efficient_attention.objectives.teacher_student_states import TEACHER, compared_states, teacher_states_for_batch
from efficient_attention.tasks.task import Task

LOG = logging.getLogger(__name__)
MASKED_LM = 'masked_lm'
LOGITS = f'{TEACHER}logits'
FIELD = 'distill.teacher'
READERS = {  # field of `distill` -> the loss terms that use the field
    'temperature': ('soft',),
    'layers': MAPPED,
    'projection': ('hidden', 'embeddings'),
}


@dataclasses.dataclass(frozen=True)
class EnsembleMember:
    """One model of a teacher ensemble: its Flax graph, its parameters on the mesh, and the order of its labels."""

    graph: nnx.GraphDef
    params: Any
    # for each label of the run, its position among this model's labels; () if the order is the same
    labels: tuple[int, ...]
    has_global: bool  # whether this model reads marks of global tokens; if False, they are removed from its batch
    digest: str  # SHA-256 of the model's parameters, config and labels


@dataclasses.dataclass(frozen=True)
class Teacher:
    """The teacher of a distillation run: the models that `distill.teacher` names, with parameters on the mesh of the
    run.

    Args:
        config: the config of the run.
        members: the teacher models; several models are an ensemble.
        layers: student layer -> teacher layer that it learns from, both counted from 1; empty if only outputs are
            compared.
        width: the width of the teacher's hidden states.
        mesh: the device mesh of the run.
    """

    config: RunConfig
    members: tuple[EnsembleMember, ...]
    layers: dict[int, int]
    width: int
    mesh: Mesh

    @property
    def digest(self) -> str:
        """SHA-256 of the parameters, configs and labels of all models in the teacher ensemble."""
        return hashlib.sha256(''.join(member.digest for member in self.members).encode()).hexdigest()

    def parameter_bytes_per_device(self) -> int:
        """Returns how many bytes the teacher's parameters take on one device."""
        leaves = jax.tree.leaves([member.params for member in self.members])
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)

    def add_teacher_outputs(self, batch: Batch) -> Batch:
        """Returns the batch with the teacher's outputs added, as arrays whose names begin with 'teacher_'.

        A batch that already has teacher logits is returned unchanged.
        """
        return batch if LOGITS in batch else batch | self.teacher_outputs(batch)

    def teacher_outputs(self, batch: Batch) -> Batch:
        """Runs the teacher on a batch, and returns only the teacher's output arrays, without the batch."""
        return self.jitted_outputs([member.params for member in self.members], batch)

    @functools.cached_property
    def jitted_outputs(self) -> Callable[[list[Any], Batch], Batch]:
        """The jitted form of `compute_outputs`: a function from the parameters of all models and a batch to the
        teacher's outputs.
        """
        return jax.jit(using_mesh(self.mesh)(self.compute_outputs))

    def compute_outputs(self, params: list[Any], batch: Batch) -> Batch:
        """Computes the teacher's outputs for a batch: mean logits of the ensemble and, if loss terms need them, hidden
        states. This function is not jitted.
        """
        distill, rows = self.config.distill, len(batch['tokens'])
        models = [nnx.merge(member.graph, one) for member, one in zip(self.members, params, strict=True)]
        batches = [batch if member.has_global else drop_global_token_marks(batch) for member in self.members]
        if distill.intermediate_loss_terms:
            outputs, inside = models[0].with_hidden_states(batches[0])
            found = teacher_states_for_batch(
                compared_states(inside, distill.intermediate_loss_terms, tuple(self.layers.values())), rows
            )
            said = [outputs]
        else:
            found, said = {}, [model.outputs(own) for model, own in zip(models, batches, strict=True)]
        if not distill.soft:
            return found
        name = MASKED_LM if self.config.task == 'pretraining' else 'logits'
        logits = [reorder_classes(one[name], member) for one, member in zip(said, self.members, strict=True)]
        return found | {f'{TEACHER}{name}': jnp.stack(logits).mean(axis=0)}

    def objective(self, task: Task) -> Distillation:
        """Returns the student's training objective: the task's objective plus the distillation loss terms."""
        # Only the tasks fine-tuning and pretraining read config.distill.
        assert isinstance(task.objective, FineTuning | Pretraining)
        widths = self.config.model.width, self.width
        return Distillation(task.objective, self.config.distill, tuple(self.layers), widths)


def drop_global_token_marks(batch: Batch) -> Batch:
    """Returns the batch without the array 'is_global', which marks its global tokens."""
    return {name: array for name, array in batch.items() if name != 'is_global'}


def reorder_classes(logits: Array, member: EnsembleMember) -> Array:
    """Returns a teacher model's logits with the classes in the order of the student's labels."""
    return logits[..., np.array(member.labels)] if member.labels else logits


def open_teacher(config: RunConfig, task: Task, mesh: Mesh) -> Teacher | None:
    """Loads the teacher of a distillation run onto the run's mesh; returns None if the run has no teacher.

    Raises:
        InputError: a folder has no such model, or its model does not fit the task or the student; names the folder.
    """
    if not config.distill.is_enabled:
        return None
    opened, layers = checked_teachers(config)
    for where, pretrained in opened:
        warn_if_teacher_task_differs(config, where, pretrained)
        warn_of_missing_tokenizer(task, where, pretrained)
        check_same_vocabulary(task.vocabulary, pretrained.tokenizer, where, field=FIELD)
        check_teacher_vocabulary_size(where, pretrained, len(task.vocabulary or ()) or config.model.vocab_size)
    members = tuple(make_ensemble_member(config, where, pretrained, mesh) for where, pretrained in opened)
    return Teacher(config, members, layers, opened[0][1].model.width, mesh)


def warn_of_missing_tokenizer(task: Task, where: Path, pretrained: Pretrained) -> None:
    """Logs a warning if the teacher has no tokenizer file, because its vocabulary then cannot be compared with the
    run's.
    """
    if task.vocabulary is not None and pretrained.tokenizer is None:
        LOG.warning('the teacher %s has no tokenizer file: assuming that its token ids equal those of this run', where)


def warn_if_teacher_task_differs(config: RunConfig, where: Path, pretrained: Pretrained) -> None:
    """Logs a warning if the teacher was fine-tuned for another task than the student, because labels are then matched
    only by name.
    """
    theirs, ours = pretrained.run.examples.name if pretrained.run else '', config.examples.name
    if config.distill.soft and theirs and ours and theirs != ours:
        LOG.warning('the teacher %s was trained for %s, this run is %s: labels match by name', where, theirs, ours)


class CheckedTeachers(NamedTuple):
    """The teacher models of a run with their folders, and the map from student layers to teacher layers."""

    opened: list[tuple[Path, Pretrained]]
    layers: dict[int, int]


def checked_teachers(config: RunConfig) -> CheckedTeachers:
    """Opens the teacher models of a run, and makes all checks of them that need no data.

    Raises:
        InputError: a folder has no such model, or its model does not fit the student; names the folder.
    """
    distill = config.distill
    check_loss_terms_fit_student(config)
    check_vocabularies(config)
    opened = [
        (Path(folder), with_compute_dtype(open_teacher_model(folder), config.model.dtype))
        for folder in distill.teacher_folders
    ]
    for where, pretrained in opened:
        check_teacher_inputs(config, where, pretrained)
        if distill.soft:
            check_teacher_outputs(config, where, pretrained)
    layers: dict[int, int] = {}
    if distill.intermediate_loss_terms:
        (where, pretrained) = opened[0]
        if distill.has_layer_mapping:
            layers = teacher_layers_of_student(distill.layers, config.model.layers, pretrained.model.layers)
        check_hidden_states_comparable(config, where, pretrained.model)
    return CheckedTeachers(opened, layers)


def open_teacher_model(folder: str) -> Pretrained:
    """Opens the encoder in a teacher's folder.

    Raises:
        InputError: the folder has no encoder; names the field.
    """
    try:
        return open_encoder(Path(folder))
    except InputError as error:
        raise InputError(f'{FIELD}: {error}') from None


def with_compute_dtype(pretrained: Pretrained, dtype: str) -> Pretrained:
    """Returns the model with `dtype` as its compute dtype, instead of the dtype in its config."""
    return dataclasses.replace(pretrained, model=dataclasses.replace(pretrained.model, dtype=dtype))


def make_ensemble_member(config: RunConfig, where: Path, pretrained: Pretrained, mesh: Mesh) -> EnsembleMember:
    """Puts a teacher model, already checked, onto the mesh; raises InputError if parameters are missing."""

    def make() -> nnx.Module:
        module = make_model(config, pretrained, nnx.Rngs(0))
        if pretrained.codes is not None:
            store_int8_codes(module)
        return module

    graph, state = nnx.split(nnx.eval_shape(make))
    shapes, found = nnx.to_pure_dict(state), pretrained.params() if pretrained.codes is None else pretrained.codes()
    if not config.distill.soft:  # Without soft targets the head is not used, so zeros replace its parameters.
        empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        found = empty | {'encoder': found['encoder']}
    try:
        params = match_tree_structure(shapes, found, '')
    except InputError as error:
        raise InputError(f'{FIELD} {where}: {error}') from None
    params = jax.tree.map(np.asarray, params)
    described = {
        'model': non_default_fields(pretrained.model),
        'head': non_default_fields(pretrained.head),
        'labels': pretrained.labels,
    }
    digest = params_and_config_sha256(params['encoder'] if not config.distill.soft else params, described)
    graph, params = lay_out_for_inference(graph, params)
    placed = abstract_arrays(params, mesh)
    params = jax.tree.map(lambda leaf, place: jax.device_put(leaf, place.sharding), params, placed)
    return EnsembleMember(
        graph, params, teacher_label_indices(config, pretrained), pretrained.model.global_tokens > 0, digest
    )


def make_model(config: RunConfig, pretrained: Pretrained, rngs: nnx.Rngs) -> FineTuningModel | PretrainingModel:
    """Returns the Flax module of a teacher: a pretraining model or a fine-tuning model, as the student is."""
    if config.task == 'pretraining':
        return PretrainingModel(pretrained.model, has_pairs=False, rngs=rngs)
    transform = config.head.transform if config.head.kind == 'towers' else 'none'
    head = pretrained.head if config.distill.soft else HeadConfig(kind=config.head.kind, transform=transform)
    return FineTuningModel(pretrained.model, head, rngs=rngs)


def non_default_fields(config: Any) -> dict[str, Any]:
    """Returns the config fields that differ from their defaults.

    Fields that later versions add thus do not change a teacher's digest.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return {name: value for name, value in to_dict(config).items() if getattr(config, name) != defaults[name]}


def params_and_config_sha256(params: Any, described: Mapping[str, Any]) -> str:
    """Returns one SHA-256 of a model's arrays, their names, and a description of its config."""
    total = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        total.update(f'{path_name(path)} {leaf.shape}'.encode())
        total.update(np.ascontiguousarray(leaf).data)
    return total.hexdigest()


def teacher_label_indices(config: RunConfig, pretrained: Pretrained) -> tuple[int, ...]:
    """Returns, for each label of the run, its position among the teacher's labels; returns () if no reordering is
    needed.
    """
    if not config.distill.soft or config.task == 'pretraining' or pretrained.labels == config.examples.labels:
        return ()
    return tuple(pretrained.labels.index(label) for label in config.examples.labels)


def check_loss_terms_fit_student(config: RunConfig) -> None:
    """Raises InputError if the student cannot use a distillation loss term of its config, whatever the teacher is."""
    distill, model = config.distill, config.model
    for field, terms in READERS.items():
        value, default = getattr(distill, field), type(distill).__dataclass_fields__[field].default
        if value != default and not any(getattr(distill, term) for term in terms):
            names = ', '.join(f'distill.{term}' for term in terms)
            raise InputError(f'distill.{field} is {value!r}; nothing reads it where {names} is 0: leave it {default!r}')
    if config.head.kind == 'multi_hop' and distill.soft:
        raise InputError(f"distill.soft is {distill.soft}; head.kind 'multi_hop' has no soft targets, so it must be 0")
    if distill.intermediate_loss_terms and config.head.sentence_layers:
        raise InputError(
            f'distill.{distill.intermediate_loss_terms[0]} needs one row per text; '
            'head.sentence_layers makes one row per sentence'
        )
    check_attention_comparable(config, 'the student', model)


def check_vocabularies(config: RunConfig) -> None:
    """Raises InputError unless all teachers and the student's start checkpoint have the same vocabulary."""
    start = config.train.start_from
    begins = {Path(start): 'train.start_from'} if start and not config.train.start_random else {}
    check_combinable({Path(folder): FIELD for folder in config.distill.teacher_folders} | begins)


def check_attention_comparable(config: RunConfig, who: str, model: ModelConfig) -> None:
    """Raises InputError if a loss term compares attention weights or heads, but the model's attention is not plain
    softmax over all pairs of tokens.
    """
    for name in config.distill.intermediate_loss_terms:
        if name not in HEADS:
            continue
        faults = {
            'model.cell': model.cell != 'none' and model.cell,
            'model.attention': model.attention != 'full' and model.attention,
            'model.score': model.score == 'additive' and model.score,
            'model.relative': model.relative != 'none' and model.relative,
            'model.global_tokens': model.global_tokens,
            'model.layer_heads': model.layer_heads,
            'model.layer_units': model.layer_units,
        }
        for field, value in faults.items():
            if value:
                raise InputError(
                    f'distill.{name} compares plain dot-product attention over all pairs of tokens; {who} has '
                    f'{field} {value!r}'
                )


def check_teacher_vocabulary_size(where: Path, pretrained: Pretrained, ids: int) -> None:
    """Raises InputError if the teacher's embedding table has fewer rows than the run has token ids."""
    if pretrained.model.vocab_size < ids:
        raise InputError(f'{FIELD} {where} has a table of {pretrained.model.vocab_size} tokens; this run needs {ids}')


def check_teacher_inputs(config: RunConfig, where: Path, pretrained: Pretrained) -> None:
    """Raises InputError if the teacher cannot read the student's rows, because of their length, global tokens or packed
    documents.
    """
    limit = pretrained.model.position_limit
    if limit is not None and limit < config.data.length:
        raise InputError(f'{FIELD} {where} has {limit} positions; data.length is {config.data.length}')
    theirs, ours = pretrained.model.global_tokens, config.model.global_tokens
    if theirs and not ours:
        raise InputError(f'{FIELD} {where} has global tokens, but the rows of a student without them mark none')
    if 0 < theirs < ours:
        raise InputError(f'{FIELD} {where} supports at most {theirs} global tokens; model.global_tokens is {ours}')
    try:
        check_sequence_parallel(config.mesh, pretrained.model, {})
        if config.task == 'pretraining' and config.data.pairs == 'none' and not config.has_arena_rows:
            check_packed_documents(pretrained.model)
    except InputError as error:
        raise InputError(f'{FIELD} {where}: {error}') from None


def check_teacher_outputs(config: RunConfig, where: Path, pretrained: Pretrained) -> None:
    """Raises InputError if the teacher's outputs do not match the student's: another problem, head, vocabulary size or
    set of labels.
    """
    if config.task == 'pretraining':
        if pretrained.problem != 'fill_mask':
            raise InputError(f'{FIELD} {where} has no masked-LM head, which distill.soft learns from')
        if pretrained.model.vocab_size != config.model.vocab_size:
            raise InputError(
                f'{FIELD} {where} has {pretrained.model.vocab_size} logits per word; model.vocab_size is '
                f'{config.model.vocab_size}'
            )
        return
    if pretrained.problem != config.examples.problem:
        raise InputError(
            f'{FIELD} {where} has {describe_head(pretrained)}; examples.problem is {config.examples.problem!r}. '
            'Fine-tune it for that first, or learn only from its layers with distill.soft=0'
        )
    if pretrained.head.kind != config.head.kind:
        raise InputError(
            f'{FIELD} {where}: head.kind is {pretrained.head.kind!r}; the student has {config.head.kind!r}'
        )
    if config.examples.labels and not pretrained.labels:
        raise InputError(
            f'{FIELD} {where}: its labels have no names; give them as "id2label" in its config.json, in the order of '
            f'its outputs, the names of {", ".join(config.examples.labels)}'
        )
    if set(pretrained.labels) != set(config.examples.labels):
        theirs, ours = (', '.join(labels) for labels in (pretrained.labels, config.examples.labels))
        raise InputError(f'{FIELD} {where} has the labels {theirs}; the examples have {ours}')
    if bool(pretrained.head.sentence_layers) != bool(config.head.sentence_layers):
        raise InputError(f'{FIELD} {where}: head.sentence_layers must be set in both models or in neither')


def describe_head(pretrained: Pretrained) -> str:
    """Returns a short description of a checkpoint's head for an error message."""
    return 'no head' if pretrained.problem == 'none' else f'a head for {pretrained.problem!r}'


def check_hidden_states_comparable(config: RunConfig, where: Path, teacher: ModelConfig) -> None:
    """Raises InputError if a loss term cannot compare the teacher's hidden states or heads with the student's, because
    their sizes differ.
    """
    distill, student = config.distill, config.model
    check_attention_comparable(config, f'{FIELD} {where}', teacher)
    for name in distill.intermediate_loss_terms:
        if name in HEADS and teacher.heads != student.heads:
            raise InputError(
                f'distill.{name} compares head by head; {FIELD} {where} has {teacher.heads} heads, the student '
                f'{student.heads}'
            )
        is_mapped = distill.has_projections and name in ('hidden', 'embeddings')
        if name not in HEADS and not is_mapped and teacher.width != student.width:
            advice = '' if name == 'cosine' else "; use distill.projection 'own' or 'one'"
            raise InputError(
                f'distill.{name} compares vectors of equal width; {FIELD} {where} is {teacher.width} wide, the student '
                f'{student.width}{advice}'
            )
