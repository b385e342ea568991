"""Tests that the tables of tensor names are complete and give no two parameters the same name."""

import pytest

from efficient_attention.interop.huggingface_tensor_names import FAMILIES, HuggingFaceFamily
from efficient_attention.interop.tensor_conversion import LAYERS, tied_copy_names

ENCODERS = {kind: family for kind, family in FAMILIES.items() if not family.decoder}
ENCODER_DECODERS = {kind: family for kind, family in FAMILIES.items() if family.is_encoder_decoder}
LANGUAGE_MODELS = {kind: family for kind, family in FAMILIES.items() if family.is_language_model}


@pytest.mark.parametrize('family', ENCODERS.values(), ids=ENCODERS)
def test_no_two_modules_share_a_name(family: HuggingFaceFamily):
    heads = [family.token, family.span, family.sequence.names, family.choice.names]
    for head in heads:
        names = [*family.encoder.values(), *family.masked_lm.values(), *head.values()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize('family', FAMILIES.values(), ids=FAMILIES)
def test_layers_are_numbered_and_inside_the_base_model(family: HuggingFaceFamily):
    for path, name in {**family.encoder, **family.decoder, **family.gated}.items():
        # T5 classes with a head have no name prefix. BART stores the bias over words outside the base model.
        assert name.startswith('.') == bool(family.prefix) or path == 'decoder/head'
        assert ('{layer}' in name) == path.startswith(LAYERS)


def test_all_families_have_the_same_modules_in_a_layer():
    layers = {frozenset(path for path in own.encoder if path.startswith(LAYERS)) for own in ENCODERS.values()}
    assert len(layers) == 1 and len(next(iter(layers))) == 11


@pytest.mark.parametrize('family', ENCODER_DECODERS.values(), ids=ENCODER_DECODERS)
def test_a_decoder_has_the_encoders_modules_and_a_cross_attention(family: HuggingFaceFamily):
    encoder = {path.removeprefix('encoder') for path in family.encoder if path.startswith(LAYERS)}
    decoder = {path.removeprefix('decoder') for path in family.decoder if path.startswith(LAYERS)}
    assert len(encoder) == 8 and {path for path in decoder - encoder if 'cross_attention' not in path} == set()
    assert len(decoder - encoder) == 5 and encoder < decoder
    names = [*{**family.encoder, **family.decoder, **family.gated}.values()]
    assert len(set(names)) == len(names)
    assert set(tied_copy_names(family).values()) == {'shared.weight'} and family.generators


@pytest.mark.parametrize('family', LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
def test_only_fused_modules_of_a_language_model_share_a_name(family: HuggingFaceFamily):
    names = [name for name in family.decoder.values() if name not in family.fused]
    assert len(set(names)) == len(names) and family.is_input_first and family.generators
    fused = [path.rpartition('/')[2] for path, name in family.decoder.items() if name in family.fused]
    assert fused == ['query', 'key', 'value']
    assert set(tied_copy_names(family).values()) == {'wte.weight'}
