"""XLA flags that shorten compilation, which takes most of the suite's time: most programs run only once.

Without LLVM's optimisations a program compiles in half of the time; without fusions written through MLIR, which jaxlib
0.10 can still do without, in a quarter of the rest, and not cut into 32 modules, which are for as many cores, in two
thirds of that. With COMPILE_AS_FOR_USERS=1 in the environment there are none.
"""

import os
from importlib.metadata import version

FLAGS = '' if os.environ.get('COMPILE_AS_FOR_USERS') else '--xla_backend_optimization_level=0'
if FLAGS and version('jaxlib').startswith('0.10.'):  # later versions do not know the first flag and end the process
    FLAGS += ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
