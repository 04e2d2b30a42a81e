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
    try:
        cli.main()
    except SystemExit as left:
        if isinstance(left.code, int) and left.code > 128:
            # Ctrl-C: all is said, and to give back the memory of a run may take seconds.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(left.code)
        raise


if __name__ == "__main__":
    main()
