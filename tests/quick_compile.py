"""XLA flags that shorten compilation, which takes most of the suite's time: most programs run only once.

Without LLVM's optimisations a program compiles in half of the time. Without fusions written through MLIR, which only
jaxlib 0.10 can turn off, the rest takes a quarter of its time. One module in place of 32, which are made for as many
cores, takes two thirds of that. With COMPILE_AS_FOR_USERS=1 in the environment, no flag is set.
"""

import os
from importlib.metadata import version

FLAGS = '' if os.environ.get('COMPILE_AS_FOR_USERS') else '--xla_backend_optimization_level=0'
if FLAGS and version('jaxlib').startswith('0.10.'):  # later versions do not know the first flag and end the process
    FLAGS += ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
