"""Converts a checkpoint to another file format, and optionally compresses the model.

    efficient-attention convert --model runs/sst2 --output exported

`--model` is a Hugging Face folder (safetensors only), a compact export or a workdir. `--output` becomes a Hugging Face
folder. With `--small` or `--quantize` it becomes a compact export. With `--length 4096 --pattern 'window(128) |
global_tokens(1)'` the encoder gets this number of positions and this attention pattern.

`--shrink` removes the heads and feed-forward units that pruning has masked. `--low_rank 0.9` replaces kernels and the
token table by two factors that keep this share of their energy (squared singular values). With `--weigh gradients` the
energy is weighted by the effect on the loss of the run's training rows. `--small` writes this project's compact format,
which holds the same numbers in fewer bytes. `--quantize int8` stores kernels and tables as 8-bit integers.

The folder's README.md is a model card: data, config, metrics and limits, as far as the workdir records them. `--push
user/model` uploads the folder to the Hugging Face hub; a new repository is private.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import (
    check_new_folder,
    checkpoint_from_flags,
    define_checkpoint,
    define_length,
    define_model,
    define_output,
)
from efficient_attention.errors import InputError
from efficient_attention.processes.phase_log import READING, note_phase

if TYPE_CHECKING:
    from efficient_attention.interop.pretrained import Pretrained

FEW_ZEROS = 0.02  # the report mentions zeros if more than this share of the parameters is 0
WEIGHED_ROWS = 512  # default of the flag --weigh_rows


def main() -> None:
    """Reads a model, converts and compresses it as the flags say, writes it, and prints a report."""
    options = define_flags()
    parse_flags(sys.argv, ('model', 'output'), options=options, about=__doc__)
    # This import is late, so that --help and flag errors are fast.
    from efficient_attention.interop.compact_export import save_compact
    from efficient_attention.interop.encoder_adaptation import extend_positions
    from efficient_attention.interop.hub_upload import open_hub, push_folder
    from efficient_attention.interop.huggingface_export import save_pretrained
    from efficient_attention.interop.model_card import checkpoint_metrics, write_model_card
    from efficient_attention.interop.pretrained import open_pretrained

    check_flags(options)
    note_phase(READING)
    output = options.output
    check_new_folder(output)
    hub = open_hub(options.push) if options.push else None
    pretrained = open_pretrained(options.model, checkpoint_from_flags(options))
    pretrained = extend_positions(
        pretrained, length=options.length, attention=options.pattern, global_tokens=options.global_tokens
    )
    # The checkpoint's path and its parameters are read together: a run in training may replace its best checkpoint.
    origin, params = pretrained.origin() or str(options.model), pretrained.params()
    before = dataclasses.replace(pretrained, params=lambda: params)
    after = compress_model(before, options)
    if uses_native_format(options):
        save_compact(output, after)
    else:
        save_pretrained(output, after, compresses=options.compressed)
    run, metrics = pretrained.run, {}
    if run is not None:
        metrics = checkpoint_metrics(options.model, run, checkpoint_from_flags(options))
    write_model_card(
        output,
        after,
        origin=origin,
        license_name=options.license,
        metrics=metrics,
        is_changed=changes_model(options),
        is_native=uses_native_format(options),
    )
    print_report(before, after, options, origin)
    if hub is not None:
        print(f'uploaded to {push_folder(hub, output, options.push)}')


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if two flags exclude each other, or if a flag needs another flag that is missing."""
    if options.low_rank is not None and options.ranks:
        raise InputError('--low_rank and --ranks both set ranks; give only one')
    if options.weigh_rows is not None and not options.weigh:
        raise InputError('--weigh_rows is the number of rows that --weigh reads; it needs --weigh')
    if options.weigh and options.low_rank is None and not options.ranks:
        raise InputError('--weigh changes how factors are computed; it needs --low_rank or --ranks')
    if options.float_layers and not options.quantize:
        raise InputError('--float_layers excludes layers from --quantize; it needs --quantize')
    if options.compressed and options.small:
        raise InputError(
            "--small writes this project's compact format, --compressed the compressed-tensors format; give only one"
        )


def uses_native_format(options: flags.FlagValues) -> bool:
    """Returns whether the flags ask for a compact export, this project's own file format."""
    return not options.compressed and (options.small or bool(options.quantize))


def changes_model(options: flags.FlagValues) -> bool:
    """Returns whether the flags change the model, so that the metrics of its checkpoint are not the export's."""
    names = ('length', 'pattern', 'global_tokens', 'shrink', 'low_rank', 'ranks', 'quantize', 'compressed')
    return any(options[name].value not in (None, False, []) for name in names)


def compress_model(pretrained: 'Pretrained', options: flags.FlagValues) -> 'Pretrained':
    """Returns the model, compressed as the flags say: shrunk, factored into low ranks, quantized."""
    from efficient_attention.interop.compact_export import quantize
    from efficient_attention.interop.input_importance import fine_tuning_run_config, input_importance
    from efficient_attention.interop.low_rank import check_can_factor, low_rank
    from efficient_attention.interop.shrink import shrink

    if options.shrink:
        pretrained = shrink(pretrained)
    if options.low_rank is not None or options.ranks:
        weights = None
        check_can_factor(pretrained, options.low_rank)  # this check raises its errors before training rows are read
        if options.weigh:
            fine_tuning_run_config(pretrained)
            rows = options.weigh_rows or WEIGHED_ROWS
            print(f'reading training rows of the run, at most {rows:,}', flush=True)
            weights = input_importance(pretrained, options.weigh, rows)
        pretrained = low_rank(pretrained, share=options.low_rank, ranks=tuple(options.ranks), weights=weights)
        print(f'ranks {", ".join(pretrained.model.ranks)}')
    return quantize(pretrained, options.quantize, tuple(options.float_layers)) if options.quantize else pretrained


def print_report(before: 'Pretrained', after: 'Pretrained', options: flags.FlagValues, origin: str) -> None:
    """Prints how the conversion changed the model: positions, layer sizes, rounding errors, parameters and bytes."""
    from efficient_attention.interop.int8_codes import flatten_by_path, quantization_errors
    from efficient_attention.interop.shrink import parameter_count, zero_count
    from efficient_attention.models.flops import encoder_flops

    model = after.model
    positions = f'{model.position_limit} positions' if model.position_limit else 'any number of positions'
    print(f'{options.output}: {positions}, attention {model.attention}, from {origin}')
    if options.shrink:
        count = len(set(model.layer_to_param_index))
        heads = model.layer_heads or (model.heads,) * count
        units = model.layer_units or (model.feed_forward_width,) * count
        print(f'kept heads per layer {list(heads)}, kept feed-forward units per layer {list(units)}')
    if options.shrink or model.ranks != before.model.ranks:
        products = [encoder_flops(one.model, 128, predictions=0) for one in (before, after)]
        print(f'multiply-adds of a row of 128 tokens: {products[1] / products[0]:.3f} times those before')
    if options.quantize and before.codes is not None and before.model.quantization != 'none':
        print('the model is quantized like this already: nothing is rounded again')
    elif options.quantize:
        errors = quantization_errors(flatten_by_path(after.params()), model, after.head)
        for name, error in errors.items():
            print(f'{name}: rounded, relative error {error:.4f} (root mean square)')
        for worst, error in sorted(errors.items(), key=lambda item: -item[1])[:1]:
            print(f'largest relative error of {len(errors)} arrays: {worst}, {error:.4f}')
    elif before.codes is not None and not uses_native_format(options):
        print('the 8-bit weights are written as floats; with --small they stay 8-bit')
    if options.shrink or uses_native_format(options) or options.compressed or model.ranks or before.codes is not None:
        counts = [parameter_count(one.params()) for one in (before, after)]
        sizes = [4 * counts[0], (options.output / 'model.safetensors').stat().st_size]
        print(f'parameters {counts[0]:,} before, {counts[1]:,} after{ratio_in_words(counts, "fewer")}')
        zeros = zero_count(after.params())
        if zeros > FEW_ZEROS * counts[1]:
            print(f'{counts[1] - zeros:,} of these are not 0; --small saves bytes of zeros, --shrink also saves time')
        print(f'{sizes[0]:,} bytes as float32 before, {sizes[1]:,} after{ratio_in_words(sizes, "smaller")}')
        if not uses_native_format(options) and not options.compressed:
            print('same size on disk as before, so that other software can read it; --small writes fewer bytes')


def ratio_in_words(numbers: Sequence[int], word: str) -> str:
    """Returns a ratio as words, such as ', 2.00 times smaller'; '' if the ratio is below 1.005.

    Args:
        numbers: the numerator and the denominator.
        word: the last word, such as 'smaller'.
    """
    ratio = numbers[0] / numbers[1]
    return f', {ratio:.2f} times {word}' if ratio >= 1.005 else ''


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_output('New folder: Hugging Face format, or a compact export.', options=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_length(None, 'Positions; the position table is repeated to this length.', options)
    attention = "Attention of all layers, such as 'window(128) | global_tokens(1)'."
    flags.DEFINE_string('pattern', None, attention, flag_values=options)
    flags.DEFINE_bool('shrink', False, 'Remove masked heads and feed-forward units.', flag_values=options)
    share = 'Replace kernels and the token table by factors that keep this share of energy.'
    flags.DEFINE_float('low_rank', None, share, flag_values=options)
    entries = "Ranks of the factors, instead of --low_rank, such as 'up=96,down=96,token=128'."
    flags.DEFINE_list('ranks', [], entries, flag_values=options)
    ways = "Weigh the energy by 'gradients' or 'inputs' of the run's rows; by default all numbers count alike."
    flags.DEFINE_enum('weigh', None, ['gradients', 'inputs'], ways, flag_values=options)
    rows = f'Training rows that --weigh reads; {WEIGHED_ROWS} by default.'
    flags.DEFINE_integer('weigh_rows', None, rows, lower_bound=1, flag_values=options)
    flags.DEFINE_bool('small', False, "Write this project's compact format.", flag_values=options)
    modes = ['int8', 'int8_weights']
    rounding = '8-bit kernels and tables; implies --small unless --compressed is given.'
    flags.DEFINE_enum('quantize', None, modes, rounding, flag_values=options)
    names = 'Write 8-bit kernels in the compressed-tensors format of transformers, and tables as float16.'
    flags.DEFINE_bool('compressed', False, names, flag_values=options)
    regexes = 'Regexes for the paths of layers that stay float, such as feed_forward/down.'
    flags.DEFINE_list('float_layers', [], regexes, flag_values=options)
    most = 'Most global tokens in a row.'
    flags.DEFINE_integer('global_tokens', None, most, flag_values=options)
    known = "License of the model card, such as 'apache-2.0'; unknown by default."
    flags.DEFINE_string('license', '', known, flag_values=options)
    repository = "Upload the folder to this repository of the Hugging Face hub, such as 'user/model'."
    flags.DEFINE_string('push', '', repository, flag_values=options)
    return options
