"""The command line: parse, call, print. The only place that prints or exits."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="fsdp-skill")
def main() -> None:
    """Build, search, check and publish the pytorch-fsdp skill."""
