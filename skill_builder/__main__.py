"""Where the command starts, also as ``python -m skill_builder``."""

from __future__ import annotations


def main() -> None:
    """Run the command line.

    The processes that parse import the module that was started, and need nothing of the command line: so that is
    loaded here and not above, which saves each of them most of its start.
    """
    from skill_builder.cli import main as command_line  # noqa: PLC0415

    command_line()


if __name__ == "__main__":
    main()
