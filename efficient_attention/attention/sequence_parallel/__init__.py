"""Sequence parallel attention: the tokens of each row are sharded over the devices of the mesh axis `sequence`."""
