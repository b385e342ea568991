"""What is published of the chips that a run can be planned for."""

import dataclasses

GIB = 2**30
GIGA = 1e9
TERA = 1e12


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device. The peak in operations a second stands in training/throughput.py.

    Args:
        memory: bytes that a program and its arrays may take.
        bandwidth: of its memory, bytes a second.
        link: bytes a second that it sends round a ring of its neighbours along one axis of the topology.
        clock: cycles a second of the unit that the compiler's estimates count; 0 = not known.
    """

    memory: int
    bandwidth: float
    link: float
    clock: float = 0.0


# Memory of a TPU: what the compiler of libtpu 0.0.42 gives a program (its error line 'exceeds available HBM'); 16, 95
# and 32 GB are published. Bandwidths: Google Cloud's documentation of v5e, v5p and v6e, "bandwidth per chip" of HBM and
# of the interconnect in both directions (400, 1,200 and 800 GB/s) divided by its 4, 6 and 4 ports: a ring along an axis
# takes two ports, and sends with half of each.
# Clock: the peak divided by the operations of a cycle, 2 for each of 128 x 128 cells of 4 matrix units (v5e) or of
# 2 cores of 4 (v5p), from the same pages; for v6e these do not give a plausible one.
# H200: NVIDIA's data sheet of the H200 SXM (141 GB at 4.8 TB/s; NVLink 900 GB/s, half of it each way), of which JAX
# takes three quarters by default.
CHIPS = {
    'v5e': Chip(int(15.75 * GIB), 819 * GIGA, 400 * GIGA / 4, clock=197 * TERA / (2 * 128 * 128 * 4)),
    'v5p': Chip(int(95.74 * GIB), 2765 * GIGA, 1200 * GIGA / 6, clock=459 * TERA / (2 * 128 * 128 * 8)),
    'v6e': Chip(int(31.25 * GIB), 1638 * GIGA, 800 * GIGA / 4),
    'h200': Chip(int(0.75 * 141 * GIGA), 4800 * GIGA, 900 * GIGA / 2),
}
