"""Most operations a second of known devices, for the model FLOPs utilisation."""

TERA = 1e12

# Dense bfloat16 matrix multiplication with float32 sums, FLOP/s of one JAX device. The first name found in the device
# kind counts, so special models stand before general ones. Sources, as published by the makers: NVIDIA's datasheets of
# A100, H100 and H200 (from the H100 on they print the double, for 2:4 sparsity); Google Cloud TPU documentation, system
# architecture pages of v4, v5e, v5p and v6e (per chip).
PEAKS: tuple[tuple[str, float], ...] = (
    ('A100', 312 * TERA),
    ('H100 PCIe', 756.5 * TERA),
    ('H100 NVL', 835.5 * TERA),
    ('H100', 989.5 * TERA),
    ('H200 NVL', 835.5 * TERA),
    ('H200', 989.5 * TERA),
    ('TPU v4', 275 * TERA),
    ('TPU v5 lite', 197 * TERA),
    ('TPU v5e', 197 * TERA),
    ('TPU v5', 459 * TERA),  # v5p calls itself 'TPU v5' or 'TPU v5p'
    ('TPU v6 lite', 918 * TERA),
    ('TPU v6e', 918 * TERA),
)
OTHERS = ('TPU v4 lite',)  # an inference chip (v4i) whose name holds the name of another


def peak_flops(device_kind: str) -> float | None:
    """Returns the FLOP/s of a device in bfloat16, by `jax.Device.device_kind`; None where it is not known (CPUs)."""
    if any(name in device_kind for name in OTHERS):
        return None
    return next((peak for name, peak in PEAKS if name in device_kind), None)
