"""Published figures of the chips for which a run can be planned: memory, bandwidth, links, clock."""

import dataclasses

GIB = 2**30
GIGA = 1e9
TERA = 1e12


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of device. Its peak FLOP/s is in training/throughput.py.

    Args:
        memory: bytes available to a program and its arrays.
        bandwidth: of its memory, bytes per second.
        link: bytes per second that it sends around a ring of neighbours along one axis of the topology.
        clock: cycles per second of the unit that the compiler's estimates count; 0 = not known.
    """

    memory: int
    bandwidth: float
    link: float
    clock: float = 0.0


# Memory of a TPU: the limit of a program in the compiler of libtpu 0.0.42 (its error line 'exceeds available HBM'). 16,
# 95 and 32 GB are published. Bandwidths: Google Cloud's documentation of v5e, v5p and v6e. "Bandwidth per chip" of HBM;
# for links, "bandwidth per chip" of the interconnect in both directions (400, 1,200 and 800 GB/s) divided by its 4, 6
# and 4 ports. A ring along an axis uses two ports, and sends with half of each.
# Clock: the peak divided by the operations per cycle: 2 for each of 128 x 128 cells of 4 matrix units (v5e) or of 2
# cores of 4 (v5p), from the same pages. For v6e these pages give no plausible clock.
# H200: NVIDIA's data sheet of the H200 SXM (141 GB at 4.8 TB/s; NVLink 900 GB/s, half of it in each direction). JAX
# uses three quarters of the memory by default.
CHIPS = {
    'v5e': Chip(int(15.75 * GIB), 819 * GIGA, 400 * GIGA / 4, clock=197 * TERA / (2 * 128 * 128 * 4)),
    'v5p': Chip(int(95.74 * GIB), 2765 * GIGA, 1200 * GIGA / 6, clock=459 * TERA / (2 * 128 * 128 * 8)),
    'v6e': Chip(int(31.25 * GIB), 1638 * GIGA, 800 * GIGA / 4),
    'h200': Chip(int(0.75 * 141 * GIGA), 4800 * GIGA, 900 * GIGA / 2),
}
