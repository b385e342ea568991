"""Attention through feature maps, in time and memory linear in the length: what mechanisms with feature maps share."""
