"""Errors that say that this process or this machine has run out of something: our own fault, not the other end's."""

import errno
import socket

OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # files, of the process or machine, and memory


def ran_out(error: OSError) -> bool:
    if error.errno in OUT_OF:
        return True
    return not isinstance(error, (ConnectionError, TimeoutError)) and _cannot_open_socket()


def _cannot_open_socket() -> bool:
    """A name that cannot be looked up for want of a file gives various errors, so try to open one."""
    try:
        socket.socket().close()
    except OSError as error:
        return error.errno in OUT_OF
    return False
