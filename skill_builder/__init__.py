"""Builds the pytorch-fsdp skill: pages -> corpus -> index -> skill."""

__version__ = "0.1.0"
