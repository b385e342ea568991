"""Attention through feature maps, in time and memory linear in the length: code shared by such mechanisms."""
