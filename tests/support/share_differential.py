"""Compares calls made plainly with the same calls made by ``share.load``, or under ``share.patch_all``.

Each case of the catalog runs in fresh processes, which are forked from one that has imported what the case needs:

    plain 1     the call itself
    share 1     with an empty cache
    share 2     again, with another seed, and after the change if the case has one
    plain 2     the call itself, as it would be then, if the seed or a change counts

Each run describes what it gets (``descriptions.py``). Share 1 must be as plain 1, and share 2 as plain 2. As a
program this runs the whole catalog and prints a table: ``scripts/share-differential``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from descriptions import Description, Lines, digest, without_addresses
from fork_server import ForkServer
from share_catalog import CASES, Case

import zerocopy
from zerocopy import share

TESTS = Path(__file__).parent.parent
SHARE = "zerocopy.share.api:load"
MAX_SHOWN = 6

# Packages that are imported before the children of a case fork. Each case would import them four times.
PRELOADED = {
    "transformers": "transformers.models.bert.modeling_bert",
    "diffusers": "diffusers.models.modeling_utils",
}
ENVIRONMENT = {
    # The catalog; the helpers.
    "PYTHONPATH": os.pathsep.join(
        [
            *map(str, (TESTS, TESTS / "support")),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
    ),
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}


# ------------------------------------------------------------------------------------- in a child


class Messages(logging.Handler):
    """Keeps what zerocopy logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []

    def count(self, text: str) -> int:
        """Return how many messages have a text."""
        return sum(text in message for message in self.found)

    @property
    def kept(self) -> int:
        """The results that were kept."""
        return self.count(": kept as ")

    @property
    def taken(self) -> int:
        """The kept results that were taken."""
        return self.count(": taken from ")

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.levelname}: {record.getMessage()}")


def prepare(name: str, step: str, folder: str) -> None:
    """Make the sources of a case, or change them."""
    signal.alarm(400)
    seed_all(0)
    getattr(CASES[name], step)(Path(folder))


def run(name: str, folder: str, output: str, seed: int, load: str | None) -> None:
    """Run a case in this process, and write what it gets. `load` names what stands for ``share.load``."""
    signal.alarm(400)
    # Relative paths would depend on the folder, which the server would see.
    os.chdir(os.environ["HOME"])
    case, place = CASES[name], Path(folder)
    messages = Messages()
    zerocopy_log = logging.getLogger("zerocopy")
    zerocopy_log.addHandler(messages)
    zerocopy_log.setLevel(logging.DEBUG)
    call: Callable[[], Any]
    if load is not None:
        module, _, function = load.partition(":")
        share.load = getattr(importlib.import_module(module), function)
    if case.is_patched:
        if load is not None:
            config = place.parent / "share.cfg"
            config.write_text("\n".join(case.config))
            share.patch_all(config)
        call = lambda: case.call(place)  # noqa: E731
    elif load is None:
        call = lambda: case.call(*case.arguments(place))  # noqa: E731
    else:
        call = lambda: share.load(case.call, *case.arguments(place))  # noqa: E731
    lines, refused, memory = _outcome(case, place, call, seed)
    about: dict[str, Any] = {"lines": lines, "refused": refused, "log": messages.found}
    if load == SHARE:
        about["loaded"], about["hits"] = messages.kept, messages.taken
    if load is not None:
        for description in memory:
            description.scribble()
    Path(output).write_text(json.dumps(about))
    os._exit(0)  # to end the interpreter takes longer than most cases


def _outcome(
    case: Case, place: Path, call: Callable[[], Any], seed: int
) -> tuple[Lines, str | None, list[Description]]:
    seed_all(seed)
    descriptions: list[Description] = []
    try:
        with case.within(place):
            result = call()
        state = state_lines() if case.compares_state else []
    except zerocopy.UnsupportedError as error:
        return [("outcome", f"UnsupportedError: {error}")], str(error), []
    except Exception as error:
        text = without_addresses(f"raises {type(error).__module__}.{type(error).__qualname__}: {error}")
        if isinstance(error, (AssertionError, share.CacheError)):
            traceback.print_exc()
        return [("outcome", text)], None, []
    descriptions.append(Description(result))
    lines = [("outcome", "returns"), *descriptions[0].lines, *state]
    if case.after is not None:
        try:
            descriptions.append(Description(case.after(result)))
            lines += [(f"after: {path}", text) for path, text in descriptions[1].lines]
        except Exception as error:
            lines += [("after", without_addresses(f"raises {type(error).__qualname__}: {error}"))]
    return lines, None, descriptions


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def state_lines() -> Lines:
    """Describe the state of the process that a call may change."""
    name, keys, *rest = numpy.random.get_state()
    return [
        ("generator of Python", digest(repr(random.getstate()).encode())),
        ("generator of NumPy", digest(repr((name, keys.tolist(), rest)).encode())),
        ("generator of torch", digest(torch.get_rng_state().numpy().tobytes())),
        ("default dtype", str(torch.get_default_dtype())),
        ("gradients", str(torch.is_grad_enabled())),
        ("inference mode", str(torch.is_inference_mode_enabled())),
        ("deterministic", str(torch.are_deterministic_algorithms_enabled())),
        ("current folder", str(Path.cwd())),
    ]


# ------------------------------------------------------------------------------------- in the harness


class Report(NamedTuple):
    """The result of a case, with its problems."""

    name: str
    problems: list[str]
    how: str
    seconds: float


class Harness:
    """Runs cases with one cache, in a folder of its own. Close it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fork_servers: dict[tuple[str, ...], ForkServer] = {}
        home = folder / "home"
        home.mkdir()
        self._environment = {**ENVIRONMENT, "HOME": str(home), "HF_HOME": str(home / "hf")}
        self._environment["HF_MODULES_CACHE"] = str(home / "modules")
        self._environment["ZEROCOPY_CACHE"] = str(folder / "cache")

    def close(self) -> None:
        """End the processes that children are forked from."""
        for fork_server in self._fork_servers.values():
            fork_server.close()

    def check(self, case: Case, load: str = SHARE) -> Report:
        """Run a case four times, and compare."""
        begun = time.monotonic()
        folder = self._folder / case.name.replace("/", "-") / load.rpartition(":")[2]
        folder.mkdir(parents=True)
        problems: list[str] = []
        runs: dict[str, dict[str, Any]] = {}
        try:
            self._child(case, f"prepare({case.name!r}, 'prepare', {str(folder)!r})")
            for who, seed, made_by in (("plain 1", 1, None), ("share 1", 1, load)):
                runs[who] = self._run(case, folder, who, seed, made_by)
            if case.change is not None:
                self._child(case, f"prepare({case.name!r}, 'change', {str(folder)!r})")
            runs["share 2"] = self._run(case, folder, "share 2", 2, load)
            is_new = (
                case.change is not None or case.compares_state
            )  # where the seed counts, the second run has another
            runs["plain 2"] = self._run(case, folder, "plain 2", 2, None) if is_new else runs["plain 1"]
        except ChildError as error:
            problems.append(str(error))
        else:
            problems += self._problems(case, runs, load)
            if case.limit:
                problems = [] if problems else [f"it differs no more, although: {case.limit}"]
        how = ", ".join(_how(runs[who]) for who in ("share 1", "share 2") if who in runs)
        return Report(case.name, problems, how, time.monotonic() - begun)

    def _problems(self, case: Case, runs: dict[str, dict[str, Any]], load: str) -> list[str]:
        problems: list[str] = []
        before: list[str] = []
        for number in (1, 2):
            plain, server = runs[f"plain {number}"], runs[f"share {number}"]
            if server["refused"] and not plain["refused"] and case.may_refuse:
                continue
            found = differences(plain["lines"], server["lines"])
            if found:
                text = ["    as before"] if found == before else found
                problems.append(f"share {number} differs from plain {number}:\n" + "\n".join(text))
            before = found
        if load == SHARE and case.is_shared and not problems:
            second = runs["share 2"]
            if second["loaded"] or not second["hits"]:
                said = "; ".join(second["log"]) or "nothing is logged"
                problems.append(f"share 2 did not take the result of share 1: {_how(second)}; {said}")
        return problems

    def _run(self, case: Case, folder: Path, who: str, seed: int, load: str | None) -> dict[str, Any]:
        output = folder.parent / f"{folder.name}.json"
        with contextlib.suppress(FileNotFoundError):
            output.unlink()
        self._child(case, f"run({case.name!r}, {str(folder)!r}, {str(output)!r}, {seed}, {load!r})", who)
        found: dict[str, Any] = json.loads(output.read_text())
        found["lines"] = [tuple(line) for line in found["lines"]]
        return found

    def _child(self, case: Case, code: str, who: str = "preparation") -> None:
        imports = tuple(PRELOADED[name] for name in case.needs if name in PRELOADED)
        fork_server = self._fork_servers.get(imports)
        if fork_server is None:
            names = ("share_differential", *imports)
            fork_server = self._fork_servers[imports] = ForkServer(self._folder, names, **self._environment)
        done = fork_server.run(f"import share_differential\nshare_differential.{code}", **self._environment)
        if done.returncode != 0:
            raise ChildError(f"{who} ended with status {done.returncode}: {done.stderr[-1500:]}")


class ChildError(Exception):
    """A run did not come to its end."""


def _how(run: dict[str, Any]) -> str:
    """Return how a run by share got its result."""
    if run["refused"]:
        return "refused"
    if run.get("loaded"):
        return "computed"
    return "shared" if run.get("hits") else "here"


def differences(expected: Lines, found: Lines) -> list[str]:
    """Return the first lines in which two descriptions differ, as text."""
    left, right = dict(_unique(expected)), dict(_unique(found))
    texts = []
    for path in [*left, *(path for path in right if path not in left)]:
        if left.get(path) != right.get(path):
            wanted, got = left.get(path, "nothing"), right.get(path, "nothing")
            texts.append(f"    {path}\n        expected: {wanted}\n        found:    {got}")
    more = len(texts) - MAX_SHOWN
    return [*texts[:MAX_SHOWN], f"    and {more} more"] if more > 0 else texts


def _unique(lines: Lines) -> Iterable[tuple[str, str]]:
    seen: dict[str, int] = {}
    for path, text in lines:
        seen[path] = seen.get(path, 0) + 1
        yield (path if seen[path] == 1 else f"{path} ({seen[path]})"), text


def sample(every: int) -> list[Case]:
    """Return the cases that are always run, and every n-th of the others by a hash of its name."""
    return [
        case
        for case in CASES.values()
        if case.always or int(hashlib.sha256(case.name.encode()).hexdigest(), 16) % every == 0
    ]


# ------------------------------------------------------------------------------------- in this process


def problems_here(case: Case, folder: Path, load: Callable[..., Any] | None = None) -> list[str]:
    """Run a case plainly and by share, twice, in this process. Return what differs.

    This takes a tenth of the time of `Harness.check`, which forks a process for each run. `load` stands for
    ``share.load``.
    """
    folder.mkdir(parents=True)
    config = folder.parent / "share.cfg"
    config.write_text("\n".join(case.config))
    case.prepare(folder)
    problems: list[str] = []
    for number in (1, 2):
        plain, _ = _outcome_here(case, folder, number, lambda: _call(case, folder))
        messages, zerocopy_log = Messages(), logging.getLogger("zerocopy")
        level = zerocopy_log.level
        zerocopy_log.addHandler(messages)
        zerocopy_log.setLevel(logging.DEBUG)
        if case.is_patched:
            share.patch_all(config)
        try:
            found, is_refused = _outcome_here(
                case, folder, number, lambda: _call(case, folder, load or share.load)
            )
        finally:
            share.unpatch_all()
            zerocopy_log.removeHandler(messages)
            zerocopy_log.setLevel(level)
        if not (is_refused and case.may_refuse):
            problems += (
                [f"share {number} differs from plain {number}:", *lines]
                if (lines := differences(plain, found))
                else []
            )
        if case.is_shared and number == 2 and load is None and messages.kept:
            problems.append("the second run was computed again")
        if number == 1 and case.change is not None:
            case.change(folder)
    if case.limit:
        return [] if problems else [f"it differs no more, although: {case.limit}"]
    return problems


def _call(case: Case, folder: Path, load: Callable[..., Any] | None = None) -> Any:
    if case.is_patched:
        return case.call(folder)
    return load(case.call, *case.arguments(folder)) if load else case.call(*case.arguments(folder))


def _outcome_here(case: Case, folder: Path, seed: int, call: Callable[[], Any]) -> tuple[Lines, bool]:
    """Return the lines of a call and whether it was refused. Forget the modules of the case's folder."""
    modules = set(sys.modules)
    lines, refused, _ = _outcome(case, folder, call, seed)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    return lines, refused is not None


# ------------------------------------------------------------------------------------- as a program


def main() -> int:
    """Run the catalog, print a table, and return 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="scripts/share-differential", description=__doc__.splitlines()[0])
    parser.add_argument(
        "-k", metavar="NAME", action="append", help="only cases with this in their name; may be repeated"
    )
    parser.add_argument("-q", action="store_true", help="print failures only")
    options = parser.parse_args()
    wanted = options.k or [""]
    chosen = [case for case in CASES.values() if any(part in case.name for part in wanted)]
    if not chosen:
        parser.error(f"no case has {' or '.join(map(repr, wanted))} in its name")
    counts = {"same": 0, "different": 0, "skipped": 0}
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="share-differential-") as folder:
        harness = Harness(Path(folder))
        try:
            for case in chosen:
                why = case.why_skipped()
                if why is not None:
                    counts["skipped"] += 1
                    if not options.q:
                        print(f"skipped    {case.name}: {why}", flush=True)
                    continue
                report = harness.check(case)
                kind = "different" if report.problems else "same"
                counts[kind] += 1
                if report.problems or not options.q:
                    print(f"{kind:10} {case.name:50} {report.how:20} {report.seconds:5.1f} s", flush=True)
                for problem in report.problems:
                    print("  " + problem.replace("\n", "\n  "), flush=True)
        finally:
            harness.close()
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()), end="")
    print(f" of {len(chosen)} cases on torch {torch.__version__}, {time.monotonic() - begun:.0f} s")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    # The children import this file by its name: so does this process, or there would be two of it.
    sys.exit(importlib.import_module("share_differential").main())
