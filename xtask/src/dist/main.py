"""Runs the membound command that was installed with this package."""

import os
import sys
import sysconfig


def places():
    """Directories that installers put commands into, the likeliest first."""
    yield sysconfig.get_path("scripts")
    user = "nt_user" if os.name == "nt" else "posix_user"
    yield sysconfig.get_path("scripts", user)
    # `pip install --target`.
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(os.path.dirname(here), "bin")


def main():
    for place in places():
        command = os.path.join(place, "membound")
        if os.path.isfile(command):
            os.execv(command, [command, *sys.argv[1:]])
    sys.exit("membound: the command is not where pip installs commands")


if __name__ == "__main__":
    main()
