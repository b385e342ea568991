"""The tables of names: they are complete, and no two parameters share a name."""

import pytest

from efficient_attention.interop.families import FAMILIES, Family
from efficient_attention.interop.parameters import LAYERS


@pytest.mark.parametrize('family', FAMILIES.values(), ids=FAMILIES)
def test_no_two_modules_share_a_name(family: Family):
    heads = [family.token, family.span, family.sequence.names, family.choice.names]
    for head in heads:
        names = [*family.encoder.values(), *family.masked_lm.values(), *head.values()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize('family', FAMILIES.values(), ids=FAMILIES)
def test_layers_are_numbered_and_inside_the_base_model(family: Family):
    for path, name in family.encoder.items():
        assert name.startswith('.')
        assert ('{layer}' in name) == path.startswith(LAYERS)


def test_all_families_have_the_same_modules_in_a_layer():
    layers = {frozenset(path for path in own.encoder if path.startswith(LAYERS)) for own in FAMILIES.values()}
    assert len(layers) == 1 and len(next(iter(layers))) == 11
