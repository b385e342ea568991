"""Which attention a row of several texts serves: what each of them reads must not depend on its place in the row."""

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError, require


def check_packing(model: ModelConfig) -> None:
    """Raises InputError where a text would read other tokens of itself in a packed row than in a row of its own."""
    allowed = "'zeros' with pairs.packed: a row of several pairs has one last state"
    require(model.initial_state == 'zeros', 'model.initial_state', model.initial_state, allowed)
    if model.cross_mechanism.needs.whole_rows:
        raise InputError(
            f'pairs.packed is True; model.cross_attention {model.cross_attention!r} needs a row for each pair: it '
            'mixes the tokens of a row'
        )
    for field in ('attention', 'decoder_attention'):
        stack = model.encoder if field == 'attention' else model.decoder
        for mechanism, text in zip(stack.mechanisms, getattr(model, field).split(';'), strict=True):
            if goes_by_place(mechanism):
                why = 'it reads by the place in the row, or by its length'
                raise InputError(
                    f'pairs.packed is True; model.{field} {text.strip()!r} needs a row for each pair: {why}'
                )


def check_packed_documents(model: ModelConfig) -> None:
    """Raises InputError where rows that are filled with several documents would mix them."""
    for mechanism in model.mechanisms:
        if mechanism.needs.whole_rows:
            raise InputError(
                f"data.pairs is 'none', which packs documents into full rows; model.attention {model.attention!r} "
                "mixes the tokens of a row: use 'nsp' or 'sop'"
            )


def check_cut_documents(model: ModelConfig) -> None:
    """Raises InputError where rows of a text, whose documents may not read one another, would mix them."""
    for mechanism in model.mechanisms:
        if mechanism.needs.whole_rows:
            raise InputError(
                f'data.cut_at_documents is True; model.attention {model.attention!r} mixes the tokens of a row, so '
                'that its documents would read one another: use False, or another attention'
            )


def goes_by_place(mechanism: Mechanism) -> bool:
    """Whether a token's place in the row, the row's length or its other texts decide what it reads of its own text."""
    is_pattern = mechanism.form.has_logits  # sums of feature maps, which have none, are kept for each segment
    is_placed = is_pattern and mechanism.needs.positions and not mechanism.reads.by_distance
    is_by_row = mechanism.needs.whole_rows or mechanism.reads.by_other_texts
    return is_placed or mechanism.reads.by_length or is_by_row
