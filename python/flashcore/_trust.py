"""Who else could have written a file: asked before code is loaded from it. As src/core/trusted_path.cpp."""

from __future__ import annotations

import grp
import os
import pathlib
import pwd
import stat
import sys

_FIRST_ORDINARY_GROUP = 100  # below are the system's own, with fixed numbers


def _owners() -> set[int]:
    """Root, the user, and those who could exchange the code that this process runs anyway."""
    owners = {0, os.geteuid()}
    for file in (sys.executable, __file__):
        real = pathlib.Path(os.path.realpath(file or "/"))
        owners.update(os.lstat(part).st_uid for part in (real, *real.parents) if part.exists())
    return owners


def _is_nobody_elses(gid: int) -> bool:
    """A user's private group has the user's name, and nobody else in it."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return (group.gr_name == user or gid < _FIRST_ORDINARY_GROUP) and set(group.gr_mem) <= {user, "root"}


def is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether nobody but the user, root and the owners of this Python could have put `path` there."""
    owners = _owners()
    real = pathlib.Path(os.path.realpath(path))
    for part in (*reversed(real.parents), real):
        try:
            info = os.lstat(part)
        except OSError:
            return False
        if info.st_uid not in owners:
            return False
        # What others have in a sticky folder cannot be exchanged there.
        if stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX:
            continue
        if info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and not _is_nobody_elses(info.st_gid)):
            return False
    return True
