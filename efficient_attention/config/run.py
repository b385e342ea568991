"""The whole config of a run: all config groups, and the checks that involve several groups."""

import dataclasses

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.data import ARENA_SOURCE, DataConfig
from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.evaluation import EvalConfig, has_held_out
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.field_metadata import (
    CHANGEABLE,
    TASKS,
    TRAINING_ONLY,
    field_read_by_tasks,
    field_with_marks,
    unread_fields,
)
from efficient_attention.config.head import HeadConfig, check_pooling
from efficient_attention.config.mesh import MeshConfig, check_sequence_parallel
from efficient_attention.config.model import (
    ModelConfig,
    check_compression,
    check_cut_at_documents,
    check_decoder,
    check_memory,
    check_packed_documents,
    check_packing,
    check_recurrent,
    check_sampled_attention,
)
from efficient_attention.config.noise import NoiseConfig, check_others_at_default
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.config.prune import PENALISED, PruneConfig
from efficient_attention.config.train import TrainConfig
from efficient_attention.config.value_checks import check_one_of
from efficient_attention.errors import InputError, require

# With noise, text_to_text reads only the fields OF_NOISE of the group `pairs`.
# Without noise, text_to_text does not read the fields OF_DOCUMENTS of the group `data`.
OF_NOISE = ('target_length', 'begin', 'start')
# fields of `eval` that a run with noise does not use, because it has no beam search
OF_TARGETS = ('split', 'beams', 'penalty', 'alpha')
OF_DOCUMENTS = ('source', 'held_out', 'cache', 'processes', 'workers', 'prefetch')


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The complete config of a run: the task and one dataclass per config group."""

    # what the run trains: 'pretraining' | 'language_modelling' | 'fine_tuning' | 'text_to_text'
    task: str = 'pretraining'
    data: DataConfig = DataConfig()
    examples: ExamplesConfig = field_read_by_tasks('fine_tuning', default=ExamplesConfig())
    head: HeadConfig = field_read_by_tasks('fine_tuning', default=HeadConfig())
    pairs: PairsConfig = field_read_by_tasks('text_to_text', default=PairsConfig())
    noise: NoiseConfig = field_read_by_tasks('text_to_text', default=NoiseConfig())
    model: ModelConfig = ModelConfig()
    distill: DistillConfig = field_read_by_tasks(
        'pretraining', 'fine_tuning', default=DistillConfig(), marks=(TRAINING_ONLY,)
    )
    prune: PruneConfig = field_read_by_tasks('pretraining', 'fine_tuning', default=PruneConfig())
    optimizer: OptimizerConfig = field_with_marks(TRAINING_ONLY, default=OptimizerConfig())
    mesh: MeshConfig = field_with_marks(CHANGEABLE, default=MeshConfig())
    train: TrainConfig = field_with_marks(TRAINING_ONLY, default=TrainConfig())
    checkpoint: CheckpointConfig = field_with_marks(CHANGEABLE, default=CheckpointConfig())
    eval: EvalConfig = field_with_marks(CHANGEABLE, default=EvalConfig())

    def __post_init__(self) -> None:
        check_one_of('task', self.task, TASKS)
        for name, (value, unread) in unread_fields(self, self.task).items():
            if value != unread:
                raise InputError(
                    f'{name} is {value!r}; the task {self.task} does not read it, so it must be {unread!r}'
                )
        self.distill.check_no_fields_without_teacher()
        self.train.check_start_checkpoint()
        self.check_prune()
        self.check_positions()
        if not self.eval.context and self.eval.stride > self.data.length:
            raise InputError(
                f'eval.stride is {self.eval.stride}, above data.length {self.data.length}: tokens would be left out'
            )
        is_decoder = self.task == 'language_modelling'
        fits = not (is_decoder and self.model.bidirectional) or self.model.directions_apart
        allowed = 'False in a language model, which reads no later token, without model.directions_apart'
        require(fits, 'model.bidirectional', True, allowed)
        allowed = f'another in the task {self.task}; it has only distances to earlier tokens, for decoders'
        require(is_decoder or self.model.relative != 'transformer_xl', 'model.relative', 'transformer_xl', allowed)
        check_memory(self.model)
        check_compression(self.model, {'data.length': self.data.length})
        check_recurrent(self.model)
        if self.model.cell != 'none' and self.mesh.sequence > 1:
            raise InputError(
                f'mesh.sequence is {self.mesh.sequence}; layers of model.cell {self.model.cell!r} read rows position '
                'by position'
            )
        if self.model.has_layer_specific_sizes:
            self.check_layer_specific_sizes()
        check_sequence_parallel(
            self.mesh, self.model, {'data.length': self.data.length, 'eval.context': self.eval.context}
        )
        if self.task == 'text_to_text':
            self.check_text_to_text()
        if self.model.memory_length and self.data.batches != 'streams':
            raise InputError(
                f'data.batches is {self.data.batches!r}; with model.memory_length {self.model.memory_length} it must '
                "be 'streams', so that each row continues its text"
            )
        if self.train.early_stop and not self.checkpoint.best_metric:
            raise InputError(f'train.early_stop is {self.train.early_stop}; it needs checkpoint.best_metric')
        if self.task == 'fine_tuning':
            if self.examples.problem == 'none':
                raise InputError("examples.problem is 'none'; the task fine_tuning needs one")
            check_pooling(self.head, self.model, self.examples, self.mesh)
            if self.eval.split == 'test' and not self.examples.test.strip():
                raise InputError("eval.split is 'test', but examples.test is empty: there is nothing to score")
        if self.task != 'fine_tuning' and self.model.vocab_size < self.data.vocab_size:
            raise InputError(
                f'model.vocab_size {self.model.vocab_size} is below data.vocab_size {self.data.vocab_size}'
            )
        if self.has_arena_rows:
            require(self.data.pairs == 'none', 'data.pairs', self.data.pairs, "'none' with rows of arena:<set>")
        elif self.task == 'pretraining' and self.data.pairs == 'none':
            check_packed_documents(self.model)
        if self.data.cut_at_documents:
            check_cut_at_documents(self.model)
        if self.data.pairs != 'none' and 0 < self.model.token_types < 2:
            raise InputError(
                f'model.token_types {self.model.token_types} is too few for data.pairs {self.data.pairs!r}; '
                'use 2, or 0 for none'
            )

    @property
    def has_evaluation_data(self) -> bool:
        """Whether the run has data for its evaluations."""
        if self.task == 'text_to_text' and not self.has_noise:
            return bool(self.pairs.test if self.eval.split == 'test' else self.pairs.held_out)
        return has_held_out(self.data.held_out, self.eval.split)

    @property
    def has_arena_rows(self) -> bool:
        """Whether the run pretrains a masked language model on unpacked rows of a long-range arena dataset."""
        return self.task == 'pretraining' and self.data.source.startswith(ARENA_SOURCE)

    @property
    def has_noise(self) -> bool:
        """Whether the run makes pairs from the documents of `data.source` by adding noise."""
        return self.noise.name != 'none'

    def check_noise(self) -> None:
        """Raises InputError if the run has no pairs, or if a field is set that runs with noise (or without noise) do
        not use.
        """
        self.noise.check_no_unread_fields()
        reason = f'noise.name {self.noise.name!r}'
        if self.has_noise:
            check_others_at_default(self.pairs, 'pairs', reason, read=OF_NOISE)
            kept = tuple(field.name for field in dataclasses.fields(EvalConfig) if field.name not in OF_TARGETS)
            check_others_at_default(self.eval, 'eval', reason, read=kept)
            return
        kept = tuple(field.name for field in dataclasses.fields(DataConfig) if field.name not in OF_DOCUMENTS)
        check_others_at_default(self.data, 'data', reason, read=kept)
        if not self.pairs.train.strip():
            raise InputError(
                'pairs.train is empty; the task text_to_text needs datasets of pairs to train on, or noise'
            )

    def check_target_tokenizer(self) -> None:
        """Raises InputError if the target tokenizer and the model's token tables do not fit each other."""
        pairs, model, name = self.pairs, self.model, self.pairs.target_tokenizer
        if not name:
            allowed = '0 without pairs.target_tokenizer'
            require(not model.target_vocab_size, 'model.target_vocab_size', model.target_vocab_size, allowed)
            return
        allowed = f'False with pairs.target_tokenizer {name!r}: the same id means different pieces on the two sides'
        require(not model.shared_table, 'model.shared_table', True, allowed)
        most, size = model.decoder.vocab_size, pairs.target_vocab_size or self.data.vocab_size
        if name.startswith('train:') and most < size:
            field = 'target_vocab_size' if model.target_vocab_size else 'vocab_size'
            what = f'{"pairs.target_vocab_size" if pairs.target_vocab_size else "data.vocab_size"} {size}'
            raise InputError(f'model.{field} {most} is below {what}, the pieces of pairs.target_tokenizer')

    def check_text_to_text(self) -> None:
        """Raises InputError if a text_to_text run lacks pairs or a decoder, or has targets that are too long."""
        self.check_noise()
        if not self.model.decoder_layers:
            raise InputError('model.decoder_layers is 0; the task text_to_text needs a decoder')
        check_decoder(self.model)
        check_sampled_attention(self.model)
        self.check_target_tokenizer()
        if self.eval.split == 'test' and not self.pairs.test.strip():
            raise InputError("eval.split is 'test', but pairs.test is empty: there are no targets to score by")
        if self.pairs.packed:
            check_packing(self.model)
        if self.train.z_loss and self.model.adaptive_cutoffs:
            raise InputError('train.z_loss must be 0 with model.adaptive_cutoffs, whose outputs are normalised already')
        self.check_source_target_lengths()

    def check_source_target_lengths(self) -> None:
        """Raises InputError if targets are longer than the decoder's position limit, or sources longer than the
        cross-attention's key limit.
        """
        for table, limit in self.model.decoder.position_limits_by_field.items():
            if (length := self.pairs.target_length) > limit:
                field = table.replace('model.attention', 'model.decoder_attention')
                raise too_long_error('pairs.target_length', length, field, limit)
        limit = self.model.cross_mechanism.requirements.longest
        if limit and self.data.length > limit:
            field = f'model.cross_attention {self.model.cross_mechanism.name}'
            raise too_long_error('data.length', self.data.length, field, limit)

    def check_layer_specific_sizes(self) -> None:
        """Raises InputError if a setting does not work with layers of different sizes."""
        allowed = '{} where layers differ in heads or units (model.layer_heads, model.layer_units)'
        for name, value in (('layer_decay', 1.0), ('frozen_layers', 0)):
            found = getattr(self.optimizer, name)
            require(found == value, f'optimizer.{name}', found, allowed.format(value))
        require(self.mesh.tensor == 1, 'mesh.tensor', self.mesh.tensor, allowed.format(1))

    def check_prune(self) -> None:
        """Raises InputError if the group `prune` contradicts itself, the model or the optimizer."""
        self.prune.check_no_unread_fields()
        allowed = f'empty with prune.method {self.prune.method!r}: prune whole matrices, then factorise them'
        require(not (self.prune.is_enabled and self.model.ranks), 'model.ranks', self.model.ranks, allowed)
        if self.model.has_layer_specific_sizes and self.prune.is_enabled:
            allowed = "'weight' or 'block' where layers differ in heads or units: a model can be shrunk only once"
            require(self.prune.attention != 'head', 'prune.attention', self.prune.attention, allowed)
            require(self.prune.feed_forward != 'unit', 'prune.feed_forward', self.prune.feed_forward, allowed)
        if self.prune.method in PENALISED:
            allowed = f'0 with prune.method {self.prune.method!r}, whose penalty removes weights until the last step'
            require(not self.train.early_stop, 'train.early_stop', self.train.early_stop, allowed)
        if self.prune.has_trained_scores:
            name, rate = self.optimizer.name, self.optimizer.learning_rate
            allowed = (
                f"'adamw' or 'lamb' with prune.method {self.prune.method!r}, whose scores have a separate learning rate"
            )
            require(name in ('adamw', 'lamb'), 'optimizer.name', name, allowed)
            allowed = f'above 0 with prune.method {self.prune.method!r}'
            require(rate > 0.0, 'optimizer.learning_rate', rate, allowed)

    def check_positions(self) -> None:
        """Raises InputError if rows are longer than the model's position tables, or do not fill the axial position
        grid.
        """
        model, tables = self.model, self.model.position_limits_by_field
        if model.positions == 'axial' and self.data.length != tables['model.axial_shape']:
            raise InputError(
                f'model.axial_shape {model.axial_shape} has {tables["model.axial_shape"]} positions; their number must '
                f'be data.length {self.data.length}'
            )
        self.check_length('data.length', self.data.length)
        self.check_length('eval.context', self.eval.context)

    def check_length(self, name: str, length: int) -> None:
        """Raises InputError if a row length exceeds a position table of the model.

        The row has `length` tokens, the value of the config field `name`.
        """
        for table, limit in self.model.position_limits_by_field.items():
            if length > limit:
                raise too_long_error(name, length, table, limit)


def too_long_error(name: str, length: int, table: str, limit: int) -> InputError:
    """Returns the error for a row that is longer than a position table or than a mechanism supports."""
    if 'attention' in table:
        return InputError(f'{name} {length} is beyond the {limit} tokens that {table} reads at most')
    return InputError(f'{name} {length} is beyond the position table, {table} {limit}; set {name} to at most {limit}')
