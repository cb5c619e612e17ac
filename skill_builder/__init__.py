"""Builds the pytorch-fsdp skill: pages -> corpus -> index -> skill."""

from importlib.metadata import version

__version__ = version("fsdp-skill")
