"""``zerocopy.aoti.load``, against ``torch._inductor.aoti_load_package`` of the running release."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from assembler import Entry, archive
from conftest import Child
from programs import entries

import zerocopy
from zerocopy.aoti.package import Package

SOURCE = """
    constants_info_[0].name = "fc_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].from_folded = false;
    constants_info_[0].shape = {4, 3};
    constants_info_[0].stride = {3, 1};
    constants_info_[0].original_fqn = "fc.weight";
    constants_info_[1].name = "scalar";
    constants_info_[1].dtype = cached_torch_dtype_int64;
    constants_info_[1].from_folded = false;
    constants_info_[1].shape = {};
    constants_info_[1].stride = {};
    constants_info_[1].original_fqn = "scalar";
    constants_info_[2].name = "folded";
    constants_info_[2].dtype = cached_torch_dtype_float32;
    constants_info_[2].from_folded = true;
    constants_info_[2].shape = {4};
    constants_info_[2].stride = {1};
    constants_info_[2].original_fqn = "folded";
"""
FOLDER = "x/data/aotinductor/model"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ZEROCOPY_CACHE", str(folder))
    return folder


def package(path: Path, *more: Entry) -> Path:
    path.write_bytes(
        archive(
            [
                *entries()[:4],
                Entry(f"{FOLDER}/a.wrapper.cpp", SOURCE.encode()),
                Entry(f"{FOLDER}/a.so", b"ELF"),
                *more,
            ]
        )
    )
    return path


def test_a_package_is_unpacked_once(tmp_path: Path, cache: Path) -> None:
    path = package(tmp_path / "package.pt2")
    folder = Path(Package(str(path), "model").folder())
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert files == {
        "data/aotinductor/model/a.wrapper.cpp": SOURCE.encode(),
        "data/aotinductor/model/a.so": b"ELF",
    }
    assert folder.is_relative_to(cache) and os.stat(cache).st_mode & 0o777 == 0o700
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*")}
    renamed = path.rename(tmp_path / "renamed")
    assert Path(Package(str(renamed), "model").folder()) == folder
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*")} == before
    (folder / "data/aotinductor/model/a.so").unlink()
    assert Path(Package(str(renamed), "model").folder()) == folder
    assert (folder / "data/aotinductor/model/a.so").read_bytes() == b"ELF"
    other = package(tmp_path / "other.pt2", Entry(f"{FOLDER}/b.so", b"more"))
    assert Path(Package(str(other), "model").folder()) != folder
    assert sorted(file.name for file in (cache / "programs").iterdir() if file.name.startswith(".")) == []


def test_constants_are_those_of_the_source(tmp_path: Path) -> None:
    opened = Package(str(package(tmp_path / "package.pt2")), "model")
    assert opened.constants(opened.folder()) == {
        "fc.weight": (torch.float32, (4, 3), (3, 1)),
        "scalar": (torch.int64, (), ()),
    }


@pytest.mark.parametrize("name", ["..", "../../../evil", "sub/../../evil", "/evil", "a/b", "."])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, cache: Path, name: str) -> None:
    path = package(tmp_path / "package.pt2", Entry(f"{FOLDER}/{name}", b"x"))
    with pytest.raises(zerocopy.FormatError):
        zerocopy.aoti.load(path)
    with pytest.raises((zerocopy.FormatError, KeyError)):
        zerocopy.aoti.load(path, name="../../..")
    assert not list(cache.rglob("*.so")) and not (tmp_path / "evil").exists()


def test_a_damaged_library_is_not_unpacked(tmp_path: Path, cache: Path) -> None:
    path = package(tmp_path / "package.pt2", Entry(f"{FOLDER}/b.so", b"ELF", central={"crc": 1}))
    with pytest.raises(zerocopy.FormatError, match="CRC-32"):
        zerocopy.aoti.load(path)
    assert not list(cache.rglob("*.so"))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    with pytest.raises(zerocopy.share.CacheError):
        zerocopy.aoti.load(package(tmp_path / "package.pt2"))


def test_wrong_arguments_say_what_was_expected(tmp_path: Path) -> None:
    path = package(tmp_path / "package.pt2")
    with pytest.raises(KeyError, match="found 'model'"):
        zerocopy.aoti.load(path, name="decoder")
    with pytest.raises(TypeError, match="path or a URL"):
        zerocopy.aoti.load(b"content")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        zerocopy.aoti.load(tmp_path / "none.pt2")
    with pytest.raises(FileNotFoundError):
        zerocopy.aoti.load(path, weights=tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(zerocopy.Error):
        zerocopy.aoti.load(tmp_path / "text")
    state = tmp_path / "state.pt"
    torch.save({"a": torch.ones(1)}, state)
    with pytest.raises(zerocopy.UnsupportedError, match="no compiled program"):
        zerocopy.aoti.load(state)


COMPILED = """
import ctypes, json, os, sys, torch, zerocopy
# A linker may prefer another libtorch of the machine, and leave torch's own out: its names are then looked up here.
ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so", mode=ctypes.RTLD_GLOBAL)
folder = sys.argv[1]
x = torch.linspace(-1, 1, 128).reshape(2, 64)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 32)
        self.turned = torch.nn.Parameter(torch.randn(32, 32).t())
        self.register_buffer("bias", torch.ones(32))
        self.register_buffer("table", torch.arange(32.0), persistent=False)
    def forward(self, x):
        return (self.fc(x) + self.bias) @ self.turned + self.table
"""
COMPILE = """
torch.manual_seed(0)
program = torch.export.export(Model(), (x,))
torch.export.save(program, f"{folder}/program.pt2")
torch.save(dict(program.state_dict) | dict(program.constants), f"{folder}/weights.pt")
zerocopy.convert(f"{folder}/weights.pt", f"{folder}/weights.safetensors")
for name, options in {
    "inside": {},
    "without": {"package_constants_in_so": False},
    "beside": {"package_constants_in_so": False, "package_constants_on_disk_format": "pickle_weights"},
}.items():
    configs = {f"aot_inductor.{option}": value for option, value in options.items()}
    torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/{name}.pt2", inductor_configs=configs)
torch.save(torch._inductor.aoti_load_package(f"{folder}/inside.pt2")(x), f"{folder}/expected.pt")
"""
RUN = """
import copy, gc
NAMES = ["bias", "fc.bias", "fc.weight", "table", "turned"]
os.environ["ZEROCOPY_CACHE"] = f"{folder}/cache"
expected = torch.load(f"{folder}/expected.pt")
def check(name, **options):
    model = zerocopy.aoti.load(f"{folder}/{name}.pt2", **options)
    kept = copy.deepcopy(model)
    del model
    gc.collect()
    assert torch.equal(kept(x), expected), (name, options)
    assert sorted(kept.get_constant_fqns()) == NAMES
check("inside")
check("beside")
for other in ("program.pt2", "weights.pt", "weights.safetensors"):
    check("without", weights=f"{folder}/{other}")
check("without", weights=torch.load(f"{folder}/weights.pt"))
for options in ({}, {"weights": {}}, {"weights": dict.fromkeys(NAMES, x)}):
    try:
        zerocopy.aoti.load(f"{folder}/without.pt2", **options)
    except RuntimeError as error:
        print(error)
    else:
        raise AssertionError(options)
print(json.dumps(sorted(os.listdir(f"{folder}/cache/programs"))), len(os.listdir(os.environ["TMPDIR"])))
"""


@pytest.mark.skipif(not hasattr(torch, "export"), reason="this release has no AOTInductor")
@pytest.mark.slow("compiles with g++, and starts processes")
def test_compiled_programs_run_as_with_torch(tmp_path: Path, child: Child) -> None:
    compiled = child(COMPILED + COMPILE, tmp_path, timeout=600)
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    found = []
    for number in range(2):
        temporary = tmp_path / f"temporary{number}"
        temporary.mkdir()
        done = child(COMPILED + RUN, tmp_path, TMPDIR=str(temporary))
        assert done.returncode == 0, done.stderr[-3000:]
        said = done.stdout.split("\n")
        assert "compiled without constants" in said[0]
        assert "bias is missing" in said[1] and "the program needs" in said[2]
        found.append(said[3])
    assert found[0] == found[1]
    assert len(json.loads(found[0].rpartition(" ")[0])) == 3
    assert found[0].endswith(" 0")  # nothing is unpacked elsewhere
