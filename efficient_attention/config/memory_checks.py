"""Checks that a model can keep a memory of the text before a segment, and relate positions to it."""

from collections.abc import Mapping

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.relative import UNTIED
from efficient_attention.errors import InputError, require


def check_memory(config: ModelConfig) -> None:
    """Raises InputError where the config asks for memory, or for relative attention, that its layers cannot have."""
    if config.relative == 'transformer_xl' and not all(mechanism.reads.one_band for mechanism in config.mechanisms):
        raise InputError(
            f"model.relative is 'transformer_xl'; model.attention {config.attention!r} must be causal or "
            'causal & window(w)'
        )
    if config.memory_length:
        check_keeps_memory(config)
    if config.compression != 'none':
        allowed = f"'none' with model.cell {config.cell!r}, whose state stands for all tokens before"
        require(config.cell == 'none', 'model.compression', config.compression, allowed)
        allowed = '0 without model.memory_length, which tokens leave for it'
        fits = config.memory_length > 0 or config.compressed_length == 0
        require(fits, 'model.compressed_length', config.compressed_length, allowed)


def check_compression(config: ModelConfig, lengths: Mapping[str, int]) -> None:
    """Raises InputError where a model that is trained compresses into no slots, or segments do not divide by the rate.

    lengths: of segments, in tokens, by the names of their fields.
    """
    if config.compression == 'none':
        return
    allowed = f'above 0 with model.compression {config.compression!r}'
    require(config.compressed_length > 0, 'model.compressed_length', config.compressed_length, allowed)
    check_rate(config, lengths)


def check_rate(config: ModelConfig, lengths: Mapping[str, int]) -> None:
    """Raises InputError where segments that push tokens into a compressed memory do not divide by the rate."""
    for name, length in lengths.items() if config.compressed_length else ():
        allowed = f'a multiple of model.compression_rate {config.compression_rate}: each segment fills whole slots'
        require(length % config.compression_rate == 0, name, length, allowed)


def check_keeps_memory(config: ModelConfig) -> None:
    """Raises InputError unless the layers can read what was before a segment as they read the segment."""
    asked = f'model.memory_length is {config.memory_length}; ' if config.memory_length else ''
    if config.cell != 'none':
        allowed = f'0, or 1 with model.cell {config.cell!r}: the state, which stands for all tokens before'
        require(config.memory_length <= 1, 'model.memory_length', config.memory_length, allowed)
        allowed = f'False with model.cell {config.cell!r}, whose state tells no tokens apart'
        require(not config.same_length, 'model.same_length', True, allowed)
    elif not all(mechanism.reads.by_distance for mechanism in config.mechanisms):
        raise InputError(
            f'{asked}model.attention {config.attention!r} keeps no memory: use causal, window or strided attention, '
            'which go by distance'
        )
    if config.score == 'location':
        raise InputError(
            f"{asked}model.score 'location' has vectors for positions of a text, and those in memory have none"
        )
    if config.stack != 'plain':
        raise InputError(f'{asked}a {config.stack} stack (model.stack) keeps no memory')
    if config.positions != 'none' or config.relative in UNTIED:
        raise InputError(
            f'{asked}positions must go by distance (model.positions none, with model.relative or model.rotary), as '
            'those of a text in memory are not known'
        )
