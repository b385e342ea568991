"""Sequence parallel: attention over rows whose tokens are split over the devices of the mesh axis `sequence`."""
