"""Checkpoints: one file each, committed by one atomic write, on any storage that fsspec opens.

A checkpoint is a safetensors file (8 bytes of header length, a JSON header, raw little-endian tensors): other tools
open it, and reading it executes nothing. Its name is `step-<step>-<run>-<xxh3-128 of its bytes>.safetensors`: the name
appears only with the whole file, and gives the hash of its bytes. `snapshot` chooses what goes in.

The run's id keeps runs apart that share a folder by mistake: a run removes and reads its own files alone, and those
without an id, of earlier versions. While it writes, it holds a lease on the folder.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import xxhash
from safetensors import deserialize
from safetensors.numpy import save

from ringfeed.sharding.destination.held_folder import check_folder_free, hold_folder
from ringfeed.sharding.destination.leftovers import abort_uploads, remove_files
from ringfeed.sharding.errors import ConfigError, CorruptionError, DestinationError, StorageError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.lease import is_lease_draft, is_lease_file, read_holder
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.special_files import SpecialFileError
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings

_NAME = re.compile(r"step-(\d{10})-(?:([0-9a-f]{16})-)?([0-9a-f]{32})\.safetensors")  # groups: step, run, hash
_LEASE = "_training.json"
_HISTORY = "history"
_REMEDY = "remove it, or set checkpoint.on_damage=previous, to resume from the one before"
_OTHER_FOLDER = "set another checkpoint.url"
_POLL_SECONDS = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a run after a step.

    Args:
        step: number of steps since the run began.
        arrays: tensors by name.
        state: the rest of the state, in JSON's types.
        run: id of the run, 16 hexadecimal digits; empty if it has none.

    >>> import numpy as np
    >>> from ringfeed.training import CheckpointStore
    >>> _ = CheckpointStore("checkpoints").save(Checkpoint(step=3, arrays={"weights": np.ones(2)}))
    >>> CheckpointStore("checkpoints").newest().arrays["weights"].tolist()
    [1.0, 1.0]
    """

    step: int
    arrays: Mapping[str, npt.NDArray[Any]]
    state: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as a safetensors file, which also records the order of the arrays.

    The history grows with the run, and a header must stay below 100 MB: the history is a tensor, of the bytes of JSON.
    """
    state = {key: value for key, value in checkpoint.state.items() if key != _HISTORY}
    metadata = {
        "step": str(checkpoint.step),
        "state": json.dumps(state, sort_keys=True),
        "order": json.dumps(list(checkpoint.arrays)),
    } | ({"run": checkpoint.run} if checkpoint.run else {})
    arrays = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    if _HISTORY in checkpoint.state:
        arrays[_HISTORY] = np.frombuffer(_history_text(checkpoint.state[_HISTORY]).encode(), np.uint8)
    return bytes(save(arrays, metadata))


def _history_text(history: Any) -> str:
    """Return the JSON of a history, its entries encoded one by one: `json.dumps` takes six times the text's memory.

    >>> history = {"steps": [{"step": 2, "loss": 0.5}, {"step": 4, "loss": 0.25}], "evaluations": [], "trackers": {}}
    >>> _history_text(history) == json.dumps(history, sort_keys=True)
    True
    """
    encode_value = json.JSONEncoder(sort_keys=True).encode
    if not isinstance(history, Mapping):
        return encode_value(history)
    values = {
        key: f"[{', '.join(map(encode_value, value))}]" if isinstance(value, list) else encode_value(value)
        for key, value in sorted(history.items())
    }
    return "{" + ", ".join(f"{encode_value(key)}: {text}" for key, text in values.items()) + "}"


def decode(data: bytes) -> Checkpoint:
    """Decode the bytes of a file that `encode` made; any Exception says that another program made it.

    >>> decoded = decode(encode(Checkpoint(step=3, arrays={"w": np.arange(4.0)}, state={"epoch": 1})))
    >>> decoded.step, decoded.arrays["w"].tolist(), decoded.state
    (3, [0.0, 1.0, 2.0, 3.0], {'epoch': 1})
    """
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    found = {
        name: np.frombuffer(tensor["data"], _dtype(tensor["dtype"])).reshape(tensor["shape"])
        for name, tensor in deserialize(data)  # type: ignore[no-untyped-call]
    }
    arrays = {name: found[name] for name in json.loads(metadata["order"])}
    state = json.loads(metadata["state"])
    if not isinstance(state, dict):
        raise TypeError(f"its state is {state!r:.80}")
    if _HISTORY in found:  # in older files it is in the header
        state[_HISTORY] = json.loads(found[_HISTORY].tobytes())
    return Checkpoint(step=int(metadata["step"]), arrays=arrays, state=state, run=metadata.get("run", ""))


def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a safetensors name; `safetensors.numpy` writes bfloat16 but does not read it.

    >>> [_dtype(name).name for name in ("F32", "I64", "U8", "BOOL", "BF16")]
    ['float32', 'int64', 'uint8', 'bool', 'bfloat16']
    """
    if name in ("BOOL", "BF16"):
        return np.dtype(bool if name == "BOOL" else ml_dtypes.bfloat16)
    return np.dtype(f"{name[0].lower()}{int(name[1:]) // 8}")


def _step_of(name: str) -> int:
    return int(name[len("step-") :][:10])


def _run_of(name: str) -> str:
    match = _NAME.fullmatch(name)
    return "" if match is None else match.group(2) or ""


def _is_draft(name: str) -> bool:
    return is_lease_draft(name, _LEASE) or _NAME.fullmatch(draft_target(name)) is not None


class CheckpointStore:
    """The checkpoints of a run in one folder. Only one process of it, rank 0, may write to it.

    Args:
        url: path or URL of the folder.
        keep: number of the newest checkpoints that a save keeps.
        on_damage: what `newest` does about a damaged file: "error" raises; "previous" warns and reads the one before.
        check: raises an error for a checkpoint that the run cannot use, which then counts as damaged.
        retries: how transient errors of the storage are retried; None: as anywhere.

    Raises:
        StorageError: from any method, if the storage fails.

    >>> import numpy as np
    >>> from ringfeed.training import Checkpoint
    >>> store = CheckpointStore("checkpoints", keep=2)
    >>> for step in (10, 20, 30):
    ...     _ = store.save(Checkpoint(step=step, arrays={"weights": np.zeros(2)}))
    >>> len(store.names()), store.newest().step
    (2, 30)
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 3,
        on_damage: str = "error",
        check: Callable[[Checkpoint], object] = lambda _: None,
        retries: RetryPolicy | None = None,
        timings: StoreTimings | None = None,
    ) -> None:
        self._storage = Storage(url, retries=retries or RetryPolicy(), timings=timings or StoreTimings())
        self._keep = keep
        self._on_damage = on_damage
        self._check = check

    def names(self) -> list[str]:
        """Return the file names of all checkpoints, oldest first; on this machine also links and special files."""
        return sorted(name for name in self._files() if _NAME.fullmatch(name))

    def _files(self) -> list[str]:
        local = self._storage.local_path
        with self._storage.errors("list", ""):
            return os.listdir(local) if local is not None and local.exists() else self._storage.list()

    @property
    def is_local(self) -> bool:
        """Whether the folder is one of this machine, perhaps of a file system that others share."""
        return self._storage.local_path is not None

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint, which may be damaged; -1 if there is none."""
        return max(map(_step_of, self.names()), default=-1)

    def is_held_by(self, run: str) -> bool:
        """Whether the folder has the lease of a run."""
        holder = read_holder(self._storage, _LEASE)
        return holder is not None and holder.about.get("run") == run

    def check_free(self) -> None:
        """Raise a DestinationError for a folder that another process of this machine writes to."""
        check_folder_free(self._storage, _LEASE, _OTHER_FOLDER)

    def has_leftovers(self) -> bool:
        """Whether a run that was killed, or still runs, has a lease or an unfinished file in the folder."""
        return any(is_lease_file(name, _LEASE) or _is_draft(name) for name in self._files())

    @contextmanager
    def hold(self, run: str, given_up: threading.Event | None = None, leaving_seconds: float = 10.0) -> Iterator[None]:
        """Let no other run write to the folder in the body; check first that files can be written and removed.

        Also removes what a process that was killed while it wrote a checkpoint has left, which may be large. A
        DestinationError says that another run writes to it, a ConfigError that it holds checkpoints of another run. If
        `given_up` is set, the wait for another rank of the run ends, with a DestinationError. Where ranks change
        places, one on this machine has `leaving_seconds` to release the folder.
        """
        silent = self._await_own(run, given_up or threading.Event(), leaving_seconds)
        plain = self._storage
        with hold_folder(plain, {"task": "run", "run": run}, _LEASE, _OTHER_FOLDER, silent) as fenced:
            files = self._files()
            if others := {_run_of(name) for name in files} - {"", run}:
                raise ConfigError(f"{plain.locate()} holds checkpoints of another run ({min(others)}): {_OTHER_FOLDER}")
            remove_files(fenced, filter(_is_draft, files))
            abort_uploads(fenced, lambda name: _NAME.fullmatch(name) is not None)
            self._storage = fenced
            try:
                yield
            finally:
                self._storage = plain

    def _await_own(self, run: str, given_up: threading.Event, leaving_seconds: float) -> str:
        """Wait for another rank of the run to release the folder; return the token of one on a host that is silent.

        Ranks that change places release it within a moment; one whose host is lost does so never.
        """
        seen, begun = None, time.monotonic()
        while (holder := read_holder(self._storage, _LEASE)) is not None:
            if holder.about.get("run") != run or holder.has_ended:
                return ""
            now = time.monotonic()
            beat = holder.token, holder.beat
            if beat != seen:
                seen, changed = beat, now
            if not holder.is_local and now - changed > self._storage.timings.silent_seconds:
                return holder.token
            if now - begun > leaving_seconds and (holder.is_local or changed > begun + leaving_seconds):
                return ""
            if given_up.wait(_POLL_SECONDS):
                raise DestinationError(f"the wait for {self._storage.locate()} was given up")
        return ""

    def save(self, checkpoint: Checkpoint, best_steps: Collection[int] = ()) -> str:
        """Commit a checkpoint, remove all of its run but those of `best_steps` and the newest `keep`; return its URL.

        Other checkpoints of this step or later ones are removed, too: `newest` skipped them as damaged.
        """
        data = encode(checkpoint)
        step = f"step-{checkpoint.step:010d}"
        run = f"{checkpoint.run}-" if checkpoint.run else ""
        name = f"{step}-{run}{xxhash.xxh3_128_hexdigest(data)}.safetensors"
        self._storage.write(name, data)
        others = [other for other in self._names_of(checkpoint.run) if other != name and not self._is_folder(other)]
        earlier = [other for other in others if other < step]
        aged = [old for old in earlier[: -self._keep + 1 or None] if _step_of(old) not in best_steps]
        for old in [*others[len(earlier) :], *aged]:
            self._storage.remove(old)
        return self._storage.locate(name)

    def _names_of(self, run: str) -> list[str]:
        return [name for name in self.names() if _run_of(name) in ("", run)]

    def _is_folder(self, name: str) -> bool:
        local = self._storage.local_path
        return local is not None and os.path.isdir(local / name) and not os.path.islink(local / name)

    def of_step(self, step: int, run: str = "") -> Checkpoint:
        """Return the checkpoint of a step of a run, with its bytes verified.

        Raises:
            CorruptionError: it is damaged or forged.
            StorageError: there is none.
        """
        names = [name for name in self._names_of(run) if _step_of(name) == step]
        if not names:
            raise StorageError(f"there is no checkpoint of step {step} in {self._storage.url}")
        return self._read(names[-1])

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint, with its bytes verified, or None if there is none.

        Raises:
            ConfigError: the folder holds checkpoints of several runs.
            CorruptionError: it is damaged or forged; if `on_damage` is "previous": all of them are.
        """
        names = self.names()
        if len(runs := sorted({_run_of(name) for name in names} - {""})) > 1:
            raise ConfigError(
                f"{self._storage.locate()} holds checkpoints of {len(runs)} runs ({', '.join(runs)}): move all but "
                f"those of one (step-*-RUN-*.safetensors) to other folders, or {_OTHER_FOLDER}"
            )
        return self._newest_of(names) if names else None

    def _newest_of(self, names: list[str]) -> Checkpoint:
        try:
            return self._read(names[-1])
        except CorruptionError as error:
            if self._on_damage == "error" or len(names) == 1:
                raise
            log.warning("%s; trying the one before", error)
        return self._newest_of(names[:-1])

    def _bytes(self, name: str) -> bytes:
        try:
            return self._storage.read(name)
        except FileNotFoundError as error:
            problem: Exception = error
            reason = "it is a link that leads nowhere, or has just been removed"
        except StorageError as error:
            if self._storage.local_path is None or os.path.isfile(self._storage.local_path / name):
                raise  # the disk or the store may recover
            problem, cause = error, error.__cause__
            reason = str(cause).partition(";")[0] if isinstance(cause, SpecialFileError) else "it is no file"
        raise CorruptionError(f"checkpoint {self._storage.locate(name)} is damaged: {reason}; {_REMEDY}") from problem

    def _read(self, name: str) -> Checkpoint:
        data = self._bytes(name)
        match = _NAME.fullmatch(name)
        assert match is not None
        found = xxhash.xxh3_128_hexdigest(data)
        if found != match.group(3):
            raise CorruptionError(
                f"checkpoint {self._storage.locate(name)} is damaged: its {len(data)} bytes hash to {found}; {_REMEDY}"
            )
        try:
            checkpoint = decode(data)
            if (checkpoint.step, checkpoint.run) != (int(match.group(1)), match.group(2) or ""):
                raise ValueError(f"it is of step {checkpoint.step} of run {checkpoint.run!r:.40}")
            self._check(checkpoint)
        except Exception as error:  # on a file that another program made, the libraries raise anything
            raise CorruptionError(
                f"checkpoint {self._storage.locate(name)} has the hash in its name, but ringfeed did not write it "
                f"({type(error).__name__}: {brief(error)}); {_REMEDY}"
            ) from error
        return checkpoint
