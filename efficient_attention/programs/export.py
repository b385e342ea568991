"""Writes a trained model as a program that runs without this package: a JAX program, or an ONNX file.

    efficient-attention export --model runs/sst2 --output exported/sst2
    efficient-attention export --model runs/sst2 --output exported/sst2_onnx --format onnx

`--model` is a workdir, a compact export or a Hugging Face folder. The program takes any batch size and a fixed row
length. A JAX program is lowered for CPUs, NVIDIA GPUs and TPUs. It was run on CPUs only until now.
`jax.export.deserialize` reads it. README.md in the new folder has the code that runs the program, and export.json lists
inputs, outputs, labels and tokenizer files.

The outputs are logits of the model's head, or hidden states of an encoder without a head. ONNX files support encoders
with softmax attention over any pattern, such as BERT, Longformer and BigBird. If ONNX lacks an operation of the model,
the error names the operation.
"""

import sys

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
from efficient_attention.processes.phase_log import READING, note_phase


def main() -> None:
    """Reads a model, writes it as a program, and prints what the folder contains."""
    options = define_flags()
    parse_flags(sys.argv, ('model', 'output'), options=options, about=__doc__)
    # These imports are late, so that --help and flag errors are fast.
    from efficient_attention.inference.jax_export import export_jax, open_exportable
    from efficient_attention.inference.onnx_export import export_onnx

    check_new_folder(options.output)
    note_phase(READING)
    model = open_exportable(options.model, checkpoint_from_flags(options), options.length)
    if options.format == 'onnx':
        export_onnx(model, options.output)
    else:
        export_jax(model, options.output)
    print(f'{options.output}: a program of the format {options.format}, from {model.origin or options.model}')
    print(f'inputs {", ".join(model.lengths)}; README.md has the code that runs the program')


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_output('New folder with the program.', options=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_length(None, 'Tokens per row; by default the positions of the model, else its training length.', options)
    formats = 'Format of the program.'
    flags.DEFINE_enum('format', 'jax', ['jax', 'onnx'], formats, flag_values=options)
    return options
