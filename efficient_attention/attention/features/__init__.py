"""Attention through feature maps, linear in the length: what every mechanism that has one shares."""
