"""Converts checkpoints: python scripts/convert.py --model runs/sst2 --output exported

`--model` is a Hugging Face folder (safetensors alone), a small folder or a workdir, `--output` becomes a Hugging Face
folder, or with `--small` and `--quantize` a small one. With `--length 4096 --pattern 'window(128) | global_tokens(1)'`
the encoder gets as many positions and that attention.

`--shrink` removes the heads and feed-forward units that pruning has masked, `--low_rank 0.9` takes kernels and the
token table apart into two factors that keep this share of their energy (squared singular values), with `--weigh
gradients` of what matters to the loss of the run's training rows. `--small` writes this project's own form, in as few
bytes as say the same; `--quantize int8` makes kernels and tables 8-bit integers there.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import (
    chosen_checkpoint,
    define_checkpoint,
    define_length,
    define_model,
    define_output,
)
from efficient_attention.errors import InputError
from efficient_attention.processes.phases import READING, note_phase

if TYPE_CHECKING:
    from efficient_attention.interop.pretrained import Pretrained

FEW_ZEROS = 0.02  # share of a model's numbers, above which a report counts them
WEIGHED_ROWS = 512  # of --weigh, where --weigh_rows does not say


def main() -> None:
    """Reads, changes what is asked for, writes, and says what was written."""
    options = define_flags()
    parse_flags(sys.argv, ('model', 'output'), options=options)
    from efficient_attention.interop.adapt import lengthen  # after --help and refusals, which need none of it
    from efficient_attention.interop.folder_out import save_pretrained
    from efficient_attention.interop.pretrained import open_pretrained
    from efficient_attention.interop.save_small import save_small

    check_flags(options)
    note_phase(READING)
    output = options.output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f'--output {output}: there is something already')
    pretrained = open_pretrained(options.model, chosen_checkpoint(options))
    pretrained = lengthen(
        pretrained, length=options.length, attention=options.pattern, global_tokens=options.global_tokens
    )
    # Both at once: the best checkpoint of a run beside this may become another.
    origin, params = pretrained.origin() or str(options.model), pretrained.params()
    before = dataclasses.replace(pretrained, params=lambda: params)
    after = changed(before, options)
    if is_small(options):
        save_small(output, after)
    else:
        save_pretrained(output, after, compresses=options.compressed)
    print_report(before, after, options, origin)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError where flags do not go together."""
    if options.low_rank is not None and options.ranks:
        raise InputError('--low_rank chooses ranks, and --ranks names them; give one of both')
    if options.weigh_rows is not None and not options.weigh:
        raise InputError('--weigh_rows says how many rows --weigh reads; it needs --weigh')
    if options.weigh and options.low_rank is None and not options.ranks:
        raise InputError('--weigh says how factors are found; it needs --low_rank or --ranks')
    if options.float_layers and not options.quantize:
        raise InputError('--float_layers names layers that --quantize leaves as they are; it needs --quantize')
    if options.compressed and options.small:
        raise InputError("--small is this project's own form, and --compressed that of compressed-tensors; give one")


def is_small(options: flags.FlagValues) -> bool:
    """Whether this project's own form is written."""
    return not options.compressed and (options.small or bool(options.quantize))


def changed(pretrained: 'Pretrained', options: flags.FlagValues) -> 'Pretrained':
    """The model without what is masked, in factors and rounded, each where it is asked for."""
    from efficient_attention.interop.input_weights import check_has_rows, input_weights
    from efficient_attention.interop.low_rank import check_can_factor, low_rank
    from efficient_attention.interop.save_small import quantize
    from efficient_attention.interop.shrink import shrink

    if options.shrink:
        pretrained = shrink(pretrained)
    if options.low_rank is not None or options.ranks:
        weights = None
        check_can_factor(pretrained, options.low_rank)  # before rows are read
        if options.weigh:
            check_has_rows(pretrained)
            rows = options.weigh_rows or WEIGHED_ROWS
            print(f'reads training rows of the run, {rows:,} at most', flush=True)
            weights = input_weights(pretrained, options.weigh, rows)
        pretrained = low_rank(pretrained, share=options.low_rank, ranks=tuple(options.ranks), weights=weights)
        print(f'ranks {", ".join(pretrained.model.ranks)}')
    return quantize(pretrained, options.quantize, tuple(options.float_layers)) if options.quantize else pretrained


def print_report(before: 'Pretrained', after: 'Pretrained', options: flags.FlagValues, origin: str) -> None:
    """Says what was written and from what: positions, what rounding lost, what is left of layers, numbers and bytes."""
    from efficient_attention.interop.codes import as_flat, rounding_errors
    from efficient_attention.interop.shrink import parameter_count, zero_count
    from efficient_attention.models.flops import encoder_flops

    model = after.model
    positions = f'{model.position_limit} positions' if model.position_limit else 'any number of positions'
    print(f'{options.output}: {positions}, attention {model.attention}, from {origin}')
    if options.shrink:
        count = len(set(model.layer_numbers))
        heads = model.layer_heads or (model.heads,) * count
        units = model.layer_units or (model.feed_forward_width,) * count
        print(f'heads {list(heads)}, feed-forward units {list(units)}')
    if options.shrink or model.ranks != before.model.ranks:
        products = [encoder_flops(one.model, 128, predictions=0) for one in (before, after)]
        print(f'multiply-adds of a row of 128 tokens: {products[1] / products[0]:.3f} of before')
    if options.quantize and before.codes is not None and before.model.quantization != 'none':
        print('it holds these codes already: nothing is rounded again')
    elif options.quantize:
        errors = rounding_errors(as_flat(after.params()), model, after.head)
        for name, error in errors.items():
            print(f'{name}: rounded, {error:.4f} of its root mean square lost')
        for worst, error in sorted(errors.items(), key=lambda item: -item[1])[:1]:
            print(f'of {len(errors)} most is lost by {worst}: {error:.4f}')
    elif before.codes is not None and not is_small(options):
        print('its codes are written as the floats that they stand for; --small keeps them')
    if options.shrink or is_small(options) or options.compressed or model.ranks or before.codes is not None:
        counts = [parameter_count(one.params()) for one in (before, after)]
        sizes = [4 * counts[0], (options.output / 'model.safetensors').stat().st_size]
        print(f'parameters {counts[0]:,} before, {counts[1]:,} after{times(counts, "fewer")}')
        zeros = zero_count(after.params())
        if zeros > FEW_ZEROS * counts[1]:
            print(
                f'{counts[1] - zeros:,} of these are not 0: zeros save bytes with --small, whole heads and units time'
            )
        print(f'{sizes[0]:,} bytes as float32 before, {sizes[1]:,} after{times(sizes, "smaller")}')
        if not is_small(options) and not options.compressed:
            print('as large on disk as before, for other readers; --small writes fewer bytes')


def times(numbers: Sequence[int], word: str) -> str:
    """How often the second number goes into the first, in words; '' where it hardly changes."""
    ratio = numbers[0] / numbers[1]
    return f', {ratio:.2f} times {word}' if ratio >= 1.005 else ''


def define_flags() -> flags.FlagValues:
    """The flags of this command."""
    options = flags.FlagValues()
    define_model(options)
    define_output('New folder: of Hugging Face, or a small one.', options=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_length(None, 'Positions, as copies of those there are.', options)
    attention = "Attention of all layers, such as 'window(128) | global_tokens(1)'."
    flags.DEFINE_string('pattern', None, attention, flag_values=options)
    flags.DEFINE_bool('shrink', False, 'Remove the heads and units that are masked.', flag_values=options)
    share = 'Share of the energy of kernels and of the token table that factors of them keep.'
    flags.DEFINE_float('low_rank', None, share, flag_values=options)
    entries = "Ranks of factors in place of --low_rank, such as 'up=96,down=96,token=128'."
    flags.DEFINE_list('ranks', [], entries, flag_values=options)
    ways = "What factors lose least of: 'gradients' or 'inputs' of the run's rows; else all numbers count alike."
    flags.DEFINE_enum('weigh', None, ['gradients', 'inputs'], ways, flag_values=options)
    rows = f'Training rows of --weigh; {WEIGHED_ROWS} by default.'
    flags.DEFINE_integer('weigh_rows', None, rows, lower_bound=1, flag_values=options)
    flags.DEFINE_bool('small', False, "Write this project's own form, in few bytes.", flag_values=options)
    modes = ['int8', 'int8_weights']
    rounding = '8-bit kernels and tables; implies --small without --compressed.'
    flags.DEFINE_enum('quantize', None, modes, rounding, flag_values=options)
    names = 'Write the 8-bit kernels in the names that transformers loads with compressed-tensors, tables as float16.'
    flags.DEFINE_bool('compressed', False, names, flag_values=options)
    regexes = 'Regexes in the paths of layers that stay float, such as feed_forward/down.'
    flags.DEFINE_list('float_layers', [], regexes, flag_values=options)
    most = 'Most tokens of a row that data mark as global.'
    flags.DEFINE_integer('global_tokens', None, most, flag_values=options)
    return options


if __name__ == '__main__':
    run_command(main)
