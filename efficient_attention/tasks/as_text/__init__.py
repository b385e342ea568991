"""Turns labelled tasks into text-to-text pairs with inputs and labels in words, and scores generated texts by the
official metrics of each task."""
