"""One server for all workers of pytest-xdist: the first in need starts it, and stays until the last is done."""

import fcntl
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

Server = TypeVar("Server")


@contextmanager
def shared(name: str, root: Path, start: Callable[[Path], AbstractContextManager[Server]]) -> Iterator[Server]:
    """Yield the server ``name`` of all processes that share ``root``; start it, in a directory there, if need be.

    Every user but the owner holds a shared lock for as long as it uses the server; the kernel lets go of it should
    that process die. The owner stops the server when it gets the same lock for itself.
    """
    announced = root / f"{name}.pickle"
    starting = root / f"{name}.starting"
    with ExitStack() as stack:
        with _locked(starting, fcntl.LOCK_EX):
            owner = not announced.exists()
            if owner:
                directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
                server = stack.enter_context(start(directory))
                users = directory / "users"
                announced.write_bytes(pickle.dumps((server, users)))
            else:
                server, users = pickle.loads(announced.read_bytes())
                stack.enter_context(_locked(users, fcntl.LOCK_SH))
        try:
            yield server
        finally:
            if owner:
                with _locked(starting, fcntl.LOCK_EX):
                    announced.unlink()
                stack.enter_context(_locked(users, fcntl.LOCK_EX))


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, kind)
        yield
