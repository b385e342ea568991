"""Whether a teacher fits the task and the student of a run: what it reads, what it says, what lies inside it."""

from pathlib import Path

from efficient_attention.config.distill import HEADS, MAPPED
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.packing_checks import check_packed_documents
from efficient_attention.config.run import RunConfig
from efficient_attention.config.sequence_checks import check_sequence
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.interop.tokenizer_files import check_combinable

FIELD = 'distill.teacher'
READERS = {  # fields of the group that some terms alone read
    'temperature': ('soft',),
    'layers': MAPPED,
    'projection': ('hidden', 'embeddings'),
}


def check_student(config: RunConfig) -> None:
    """Raises InputError where a term of the loss does not serve the student, whatever the teacher is."""
    distill, model = config.distill, config.model
    for field, terms in READERS.items():
        value, default = getattr(distill, field), type(distill).__dataclass_fields__[field].default
        if value != default and not any(getattr(distill, term) for term in terms):
            names = ', '.join(f'distill.{term}' for term in terms)
            raise InputError(f'distill.{field} is {value!r}; nothing reads it where {names} is 0: leave it {default!r}')
    if config.head.kind == 'multi_hop' and distill.soft:
        raise InputError(f"distill.soft is {distill.soft}; head.kind 'multi_hop' has no soft targets, so it must be 0")
    if distill.inside and config.head.sentence_layers:
        raise InputError(f'distill.{distill.inside[0]} needs one row a text; head.sentence_layers makes a row of each')
    check_heads(config, 'the student', model)


def check_vocabularies(config: RunConfig) -> None:
    """Raises InputError unless the teachers and the checkpoint that the student starts from share one vocabulary."""
    start = config.train.start_from
    begins = {Path(start): 'train.start_from'} if start and not config.train.start_random else {}
    check_combinable({Path(folder): FIELD for folder in config.distill.teachers} | begins)


def check_heads(config: RunConfig, who: str, model: ModelConfig) -> None:
    """Raises InputError where a term compares attention that is not softmax over products of all pairs."""
    for name in config.distill.inside:
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
                    f'distill.{name} compares the attention of all pairs of tokens by their products alone; {who} has '
                    f'{field} {value!r}'
                )


def check_table(where: Path, pretrained: Pretrained, ids: int) -> None:
    """Raises InputError where the teacher's table is too small for so many different ids."""
    if pretrained.model.vocab_size < ids:
        raise InputError(f'{FIELD} {where} has a table of {pretrained.model.vocab_size} tokens; the rows have {ids}')


def check_reads_rows(config: RunConfig, where: Path, pretrained: Pretrained) -> None:
    """Raises InputError where the teacher cannot read the student's rows, whatever their tokens are."""
    limit = pretrained.model.position_limit
    if limit is not None and limit < config.data.length:
        raise InputError(f'{FIELD} {where} has {limit} positions; data.length is {config.data.length}')
    theirs, ours = pretrained.model.global_tokens, config.model.global_tokens
    if theirs and not ours:
        raise InputError(f'{FIELD} {where} has global tokens, and the rows of a student without them mark none')
    if 0 < theirs < ours:
        raise InputError(f'{FIELD} {where} has places for {theirs} global tokens; model.global_tokens is {ours}')
    try:
        check_sequence(config.mesh, pretrained.model, {})
        if config.task == 'pretraining' and config.data.pairs == 'none' and not config.has_arena_rows:
            check_packed_documents(pretrained.model)
    except InputError as error:
        raise InputError(f'{FIELD} {where}: {error}') from None


def check_outputs(config: RunConfig, where: Path, pretrained: Pretrained) -> None:
    """Raises InputError where the teacher does not say what the student learns to say."""
    if config.task == 'pretraining':
        if pretrained.problem != 'fill_mask':
            raise InputError(f'{FIELD} {where} has no masked-LM head, which distill.soft learns from')
        if pretrained.model.vocab_size != config.model.vocab_size:
            raise InputError(
                f'{FIELD} {where} has {pretrained.model.vocab_size} logits a word; model.vocab_size is '
                f'{config.model.vocab_size}'
            )
        return
    if pretrained.problem != config.examples.problem:
        raise InputError(
            f'{FIELD} {where} has {a_head(pretrained)}; examples.problem is {config.examples.problem!r}. Fine-tune it '
            'for that first, or learn from its layers alone with distill.soft=0'
        )
    if pretrained.head.kind != config.head.kind:
        raise InputError(
            f'{FIELD} {where}: head.kind is {pretrained.head.kind!r}; that of the student is {config.head.kind!r}'
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


def a_head(pretrained: Pretrained) -> str:
    """What a checkpoint has on its encoder, in a few words."""
    return 'no head' if pretrained.problem == 'none' else f'a head for {pretrained.problem!r}'


def check_inside(config: RunConfig, where: Path, teacher: ModelConfig) -> None:
    """Raises InputError where both models' vectors or heads cannot be compared."""
    distill, student = config.distill, config.model
    check_heads(config, f'{FIELD} {where}', teacher)
    for name in distill.inside:
        if name in HEADS and teacher.heads != student.heads:
            raise InputError(
                f'distill.{name} compares head by head; {FIELD} {where} has {teacher.heads} heads, the student '
                f'{student.heads}'
            )
        is_mapped = distill.has_projections and name in ('hidden', 'embeddings')
        if name not in HEADS and not is_mapped and teacher.width != student.width:
            advice = '' if name == 'cosine' else "; use distill.projection 'own' or 'one'"
            raise InputError(
                f'distill.{name} compares vectors as they are; {FIELD} {where} is {teacher.width} wide, the student '
                f'{student.width}{advice}'
            )
