"""Flags with which XLA compiles fast: most of the suite's time goes into compiling programs that run once.

Without LLVM's optimisations a program compiles in half of the time; without fusions written through MLIR, which jaxlib
0.10 can still do without, in a third of that. `XLA_FLAGS=--xla_backend_optimization_level=3` compiles as for users, as
flags from outside come last and win.
"""

from importlib.metadata import version

FLAGS = '--xla_backend_optimization_level=0'
if version('jaxlib').startswith('0.10.'):  # later ones do not know it and end the process
    FLAGS += ' --xla_cpu_use_fusion_emitters=false'
