"""Lists the published specifications of TPUs and GPUs that the planner knows: memory, bandwidth, links and clock."""

import dataclasses

GIB = 2**30
GIGA = 1e9
TERA = 1e12


@dataclasses.dataclass(frozen=True)
class Chip:
    """The published specifications of one kind of TPU or GPU. Its peak FLOP/s is in training/throughput.py.

    Args:
        memory: bytes available to a program and its arrays.
        bandwidth: memory bandwidth in bytes per second.
        link: bytes per second that the chip sends around a ring of neighbours along one axis of the topology.
        clock: cycles per second of the unit that the compiler's estimates count; 0 = not known.
    """

    memory: int
    bandwidth: float
    link: float
    clock: float = 0.0


# TPU memory is the limit for a program in libtpu 0.0.42, from the compiler's error line 'exceeds available HBM'.
# The published memory sizes of v5e, v5p and v6e are 16, 95 and 32 GB.
# The TPU bandwidths are the HBM "bandwidth per chip" in Google Cloud's documentation of v5e, v5p and v6e.
# The interconnect's published "bandwidth per chip", both directions, is 400, 1,200 and 800 GB/s over 4, 6 and 4 ports.
# `link` is the interconnect's bandwidth per port: a ring along an axis uses two ports, and sends with half of each.
# The clock is the peak FLOP/s divided by the operations per cycle, both from Google Cloud's documentation.
# A v5e has 4 matrix units of 128 x 128 cells, and each cell has 2 operations per cycle.
# A v5p has 2 cores, each with 4 matrix units of 128 x 128 cells.
# The v6e has no clock here, because Google Cloud's documentation gives no plausible clock for it.
# H200: NVIDIA's data sheet of the H200 SXM gives 141 GB at 4.8 TB/s, and NVLink with 900 GB/s, half in each direction.
# JAX uses three quarters of a GPU's memory by default.
CHIPS = {
    'v5e': Chip(int(15.75 * GIB), 819 * GIGA, 400 * GIGA / 4, clock=197 * TERA / (2 * 128 * 128 * 4)),
    'v5p': Chip(int(95.74 * GIB), 2765 * GIGA, 1200 * GIGA / 6, clock=459 * TERA / (2 * 128 * 128 * 8)),
    'v6e': Chip(int(31.25 * GIB), 1638 * GIGA, 800 * GIGA / 4),
    'h200': Chip(int(0.75 * 141 * GIGA), 4800 * GIGA, 900 * GIGA / 2),
}
