"""Attention over rows that are split across the devices of the mesh axis `sequence`."""
