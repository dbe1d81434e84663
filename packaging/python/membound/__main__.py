"""``python -m membound``: becomes the membound command that was installed with this package."""

from __future__ import annotations

import os
import sys

from ._command import Error, find


def main() -> None:
    try:
        command = find()
    except Error as error:
        sys.exit(f"membound: {error}")
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
