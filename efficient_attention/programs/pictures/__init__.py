"""Draws the pictures and pages of the subcommand `visualize`."""
