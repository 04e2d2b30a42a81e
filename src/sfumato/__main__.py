"""`python -m sfumato`, and the command `sfumato`."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    # `python -m` looks for modules in the current folder first, which may be a stranger's.
    del sys.path[0]

from sfumato.interrupted_import import loading


def main() -> None:
    """Run the command."""
    with loading():
        from sfumato import cli
    cli.main()


if __name__ == "__main__":
    main()
