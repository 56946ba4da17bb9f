"""``zerocopy run --warm`` in virtual environments of its own, and with torch: what a fork server may not keep."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from warm_starts import WARM, Place

from zerocopy.launch import queries


class Environment:
    """A virtual environment that finds zerocopy where the tests do."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        paths = [path for path in sys.path if path.endswith("-packages")]
        (self.packages / "others.pth").write_text("\n".join(paths))

    def run(self, place: Place, text: str) -> tuple[str, str]:
        """Return what ``python`` prints, and what a warm start prints."""
        command = [str(self.python)]
        plain = place.run(command, text)
        warm = place.run([*command, *WARM], text)
        assert (warm.returncode, warm.stderr) == (plain.returncode, plain.stderr)
        return plain.stdout, warm.stdout

    def run_warm(self, place: Place, text: str) -> tuple[str, str]:
        """Return the same of a program that was forked."""
        return place.until_warm(lambda: self.run(place, text))


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> list[Environment]:
    return [Environment(tmp_path_factory.mktemp("venv") / name) for name in ("one", "two")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as place:
        yield place


def test_program_starts_warm_with_its_own_virtual_environment(
    place: Place, environments: list[Environment]
) -> None:
    text = "import dependency, sys; print(dependency.VALUE, sys.prefix, sys.executable, sys.path)"
    for number, environment in enumerate(environments):
        (environment.packages / "dependency.py").write_text(f"VALUE = {number}\n")
    for environment in environments:
        environment.run(place, text)
        place.wait()
    for number, environment in enumerate(environments):
        plain, warm = environment.run(place, text)
        assert warm == plain
        assert plain.startswith(f"{number} ")


def test_edited_dependency_is_seen_by_the_next_start(place: Place, environments: list[Environment]) -> None:
    environment = environments[0]
    text = """
import dependency
try:
    import installed_later
    print(dependency.VALUE, installed_later.VALUE)
except ImportError:
    print(dependency.VALUE)
"""
    dependency = environment.packages / "dependency.py"
    dependency.write_text("VALUE = 'first'\n")
    later = environment.packages / "installed_later.py"
    written = int(time.time()) - 10
    for path, value, printed in (
        (dependency, "first", "first\n"),
        (dependency, "other", "other\n"),  # as many bytes as before
        (later, "new", "other new\n"),
    ):
        path.write_text(f"VALUE = '{value}'\n")
        written += 1
        os.utime(path, (written, written))  # Python takes bytecode for current that is of the same second
        assert environment.run(place, text) == (printed, printed)
        place.wait()
        assert environment.run_warm(place, text) == (printed, printed)
    later.unlink()


def test_changed_data_and_a_new_module_of_a_package_are_seen(
    place: Place, environments: list[Environment]
) -> None:
    environment = environments[0]
    package = environment.packages / "package_with_data"
    package.mkdir()
    (package / "__init__.py").write_text("""
import contextlib, os
folder = os.path.dirname(__file__)
with open(os.path.join(folder, "data")) as file:
    DATA = file.read()
HAS_FLAG = os.path.exists(os.path.join(folder, "flag"))
with contextlib.suppress(FileNotFoundError):
    open("settings")  # in the current folder, where programs write
try:
    from package_with_data.optional import VALUE
except ImportError:
    VALUE = None
""")
    text = "from package_with_data import DATA, HAS_FLAG, VALUE\nprint(DATA, HAS_FLAG, VALUE)\n"
    data = package / "data"

    def set_data(value: str) -> None:
        data.write_text(value)
        os.utime(data, (1_700_000_000, 1_700_000_000))  # and as many bytes as before

    for change, printed in (
        (lambda: set_data("one"), "one False None\n"),
        (lambda: set_data("two"), "two False None\n"),
        (lambda: (package / "flag").touch(), "two True None\n"),
        (lambda: (package / "optional.py").write_text("VALUE = 3\n"), "two True 3\n"),
    ):
        change()
        assert environment.run(place, text) == (printed, printed)
        place.wait()
        (place.folder / f"written{time.monotonic_ns()}").touch()
        assert environment.run_warm(place, text) == (printed, printed)
    shutil.rmtree(package)


def test_module_of_the_program_that_a_package_may_use_is_found(
    place: Place, environments: list[Environment]
) -> None:
    environment = environments[0]
    (environment.packages / "may_use.py").write_text(
        "try:\n    import speedups_of_mine\n    FOUND = speedups_of_mine.VALUE\nexcept ImportError:\n    FOUND = None\n"
    )
    text = "import may_use\nprint(may_use.FOUND)\n"
    assert environment.run(place, text) == ("None\n", "None\n")
    place.wait()
    (place.folder / "speedups_of_mine.py").write_text("VALUE = 1\n")
    for _ in range(2):
        assert environment.run(place, text) == ("1\n", "1\n")


def test_configuration_that_a_package_looks_for_is_seen(
    place: Place, environments: list[Environment]
) -> None:
    """As matplotlib does: it asks whether the file is there, before it opens it."""
    environment = environments[0]
    (environment.packages / "configured.py").write_text("""
import os, pathlib
FILE = pathlib.Path("rc").read_text() if os.path.exists("rc") else None
FOLDER = os.path.isdir("extras"), pathlib.Path("marker").exists(), sorted(os.listdir("plugins"))
""")
    (place.folder / "plugins").mkdir()
    text = "import configured\nprint(configured.FILE, configured.FOLDER)\n"
    for change, printed in (
        (lambda: None, "None (False, False, [])\n"),
        (lambda: (place.folder / "rc").write_text("a"), "a (False, False, [])\n"),
        (lambda: (place.folder / "extras").mkdir(), "a (True, False, [])\n"),
        (lambda: (place.folder / "marker").touch(), "a (True, True, [])\n"),
        (lambda: (place.folder / "plugins" / "one").touch(), "a (True, True, ['one'])\n"),
    ):
        change()
        assert environment.run(place, text) == (printed, printed)
        place.wait()
        (place.folder / "extras").is_dir() and (place.folder / "extras" / f"{time.monotonic_ns()}").touch()
        assert environment.run_warm(place, text) == (printed, printed)


def test_functions_that_are_heard_are_as_before() -> None:
    before = [(function, function.__code__, dict(function.__globals__)) for function in queries._ASKING]
    with queries.noted() as asked:
        assert os.path.exists is before[0][0] and not os.path.exists("nowhere")
        with contextlib.suppress(ImportError):
            import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert asked.looked_at == {str(Path.cwd() / "nowhere")} and asked.absent == {"no_such_module"}
    for function, code, names in before:
        assert function.__code__ is code and dict(function.__globals__) == names


@pytest.mark.parametrize("seeds", ["import random; random.seed(1)", "import random; random.random()"])
def test_package_that_seeds_is_imported_by_each_program(
    place: Place, environments: list[Environment], seeds: str
) -> None:
    environment = environments[0]
    name = f"seeds{len(seeds)}"
    (environment.packages / f"{name}.py").write_text(f"{seeds}\nRUN = 3\n")
    text = f"import random, {name}\nprint({name}.RUN, {'random.random()' if 'seed' in seeds else ''})\n"
    for _ in range(2):
        plain, warm = environment.run(place, text)
        assert warm == plain
        place.wait()


def test_variable_that_an_import_sets_is_set_by_each_start(
    place: Place, environments: list[Environment]
) -> None:
    environment = environments[0]
    (environment.packages / "setting.py").write_text("import os\nos.environ['TORCH_OF_A_TEST'] = 'set'\n")
    text = "import os, setting; print(os.environ['TORCH_OF_A_TEST'])"
    plain, warm = environment.run(place, text)
    assert warm == plain
    place.wait()
    assert environment.run_warm(place, text) == (plain, plain)


@pytest.mark.slow("a fork server that imports torch")
def test_programs_that_log_what_zerocopy_does_start_warm(place: Place) -> None:
    place.environment["ZEROCOPY_LOG_LEVEL"] = "DEBUG"
    program = "import torch; print(torch.ones(2))"
    place.prepare(program)
    assert place.until_warm(lambda: place.run(WARM, program)).returncode == 0


_WITHOUT_LOCALE = dict.fromkeys(("LANG", "LC_ALL", "LC_CTYPE"))
_STRICT = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ([], _WITHOUT_LOCALE),
        ([], {**_WITHOUT_LOCALE, "LANG": "C"}),
        (["-X", "int_max_str_digits=1000"], {}),
        (["-X", "no_debug_ranges"], {}),
        (_STRICT, {}),
    ],
    ids=["no locale", "C", "digits", "no ranges", "encodings"],
)
@pytest.mark.slow("more ways to start Python")
def test_each_way_to_start_python_starts_warm(
    options: list[str], variables: dict[str, str | None], place: Place
) -> None:
    for name, value in variables.items():
        place.environment.pop(name, None)
        if value is not None:
            place.environment[name] = value
    text = "import os, sys; print(sys.flags, sys._xoptions, sys.stdout.encoding)\n"
    text += "print(os.environ.get('LC_CTYPE'), os.environ.get('LANG'))"
    command = [sys.executable, *options]
    warm = [*command, "-m", "zerocopy", *WARM[WARM.index("run") :]]
    plain = place.run(command, text)
    place.run(warm, text)
    place.wait()
    found = place.until_warm(lambda: place.run(warm, text))
    assert (found.returncode, found.stdout, found.stderr) == (0, plain.stdout, "")


# Fork servers never ask for devices, so a program may choose them. Workers of a DataLoader are forked by the program.
TORCH = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import random, sys
import numpy, torch, torch.utils.data

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return torch.tensor([index, info.id, os.getppid() == parent])

parent = os.getpid()
workers = {"num_workers": 2, "multiprocessing_context": "fork"}
print([batch.tolist() for batch in torch.utils.data.DataLoader(Numbers(), batch_size=2, **workers)])
print(torch.cuda.device_count(), torch.get_num_threads(), torch.get_num_interop_threads())
unseeded = torch.rand(1).item(), numpy.random.rand(), random.random()
torch.manual_seed(3); numpy.random.seed(3)
print(torch.rand(2), numpy.random.rand(), torch.randn(300, 300).svd().S[:3])
print(*unseeded, file=sys.stderr)
"""


@pytest.mark.slow("workers of a DataLoader, and a fork server that imports torch")
def test_torch_program_matches_python_and_draws_anew(place: Place) -> None:
    place.prepare(TORCH)
    plain = place.run([sys.executable], TORCH)
    first, second = (place.until_warm(lambda: place.run(WARM, TORCH)) for _ in range(2))
    assert first.stdout == second.stdout == plain.stdout
    assert len({*plain.stderr.split(), *first.stderr.split(), *second.stderr.split()}) == 9


# An object with a finalizer has the interpreter take all apart, torch's own operators too.
LOADING = """
import os, re, sys, torch
class A:
    def __del__(self): print("gone")
a, weight = A(), torch.load("model.pt")["weight"]
maps = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.endswith("model.pt\\n")]
print(any(int(start, 16) <= weight.data_ptr() < int(end, 16) for start, end in maps), weight.sum())
rollup = open("/proc/self/smaps_rollup").read()
private = re.findall("Private_Dirty: +([0-9]+)", rollup)[0]
print(private, len(os.listdir(f"/proc/{os.getppid()}/task")), file=sys.stderr)
"""


def test_torch_program_starts_warm_with_its_loads_served_and_little_memory_of_its_own(place: Place) -> None:
    torch.save({"weight": torch.ones(5000)}, place.folder / "model.pt")
    cold = place.run(WARM, LOADING)
    assert (cold.returncode, cold.stdout) == (0, "True tensor(5000.)\ngone\n"), cold.stderr
    place.wait()
    warm = place.until_warm(lambda: place.run(WARM, LOADING))
    assert (warm.returncode, warm.stdout) == (0, cold.stdout)
    kilobytes, threads = map(int, warm.stderr.split())
    assert kilobytes < 30_000 and threads == 1, "the fork server has one thread"
