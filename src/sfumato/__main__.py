"""`python -m sfumato`, and the command `sfumato`."""

from __future__ import annotations

from sfumato.loading import loading


def main() -> None:
    """Run the command."""
    with loading():
        from sfumato import cli
    cli.main()


if __name__ == "__main__":
    main()
