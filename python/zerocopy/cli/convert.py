"""``zerocopy convert``: a checkpoint in another format."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerocopy import display
from zerocopy.cli import reading, runner
from zerocopy.cli.output import Progress, escaped, say

DESCRIPTION = """
Writes checkpoints as .pt, .safetensors or .h5, in one file or in shards. The ending of DST selects the format. Several
sources are merged. One tensor at a time is in memory. After an error, DST is what it was before.
"""

EPILOG = (
    runner.exit_codes(
        fine="converted",
        bad="--verify found damage in a source (nothing was converted), or a difference after the conversion",
        trouble="nothing was converted, or the result could not be verified or reported: one line on standard error "
        "says why",
        several=runner.OF_SEVERAL,
    )
    + """
example:
  $ zerocopy convert model.pt model.safetensors
  $ zerocopy convert --keep model. --strip-prefix model. --dtype bf16 --verify checkpoint.pt model.safetensors
  $ zerocopy convert --max-shard-size 5GB model.pt folder
"""
)

_SHORT = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32",
          "f32": "float32", "fp64": "float64", "f64": "float64"}  # fmt: skip
_MAX_LENGTH = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("sources", metavar="SRC", nargs="+", help="a checkpoint: a file, an index, a folder")
    parser.add_argument("target", metavar="DST", help="where to write")
    parser.add_argument("--dtype", help="convert floating-point tensors: bf16, fp16, float32, ...")
    parser.add_argument(
        "--max-shard-size", metavar="SIZE", help="write shards of at most this size: 5GB, 500MB, 1GiB"
    )
    parser.add_argument(
        "--keep", metavar="PREFIX", action="append", help="only names that begin with PREFIX; may be repeated"
    )
    parser.add_argument(
        "--strip-prefix",
        metavar="PREFIX",
        default="",
        help="remove PREFIX from the names that begin with it: model. writes model.weight as weight",
    )
    parser.add_argument(
        "--unknown",
        choices=("refuse", "stub"),
        default="refuse",
        help="objects of classes that are not allowed: refuse the file, or leave these objects out (default: refuse)",
    )
    parser.add_argument(
        "--ties",
        choices=("note", "copy"),
        default="note",
        help="tensors that show the same bytes, in .safetensors: written once, and the other names noted in the "
        "metadata; or copied for each name (default: note)",
    )
    parser.add_argument(
        "--tied-name",
        metavar="NAME",
        action="append",
        help="of tied names, one to write (default: the first in the alphabet); may be repeated",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="an error if DST would leave out anything, in place of a warning",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check the checksums of the sources first, and compare source and target afterwards, bit for bit",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Convert, and return the exit code."""
    target = options.target
    replaces = any(runner.is_same_file(source, target) for source in options.sources)
    if options.verify and replaces:
        parser.error("--verify needs the source, which DST replaces")
    if options.tied_name and options.ties == "copy":
        parser.error("--ties copy writes every name: leave out --tied-name")
    dtype = _dtype(parser, options.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the summary below lists all that is left out
        if options.verify:
            from zerocopy.cli import verify

            reports = reading.reports(options.sources, verify.Verifier())
            if damage := [line for report in reports if report.code == runner.BAD for line in report.lines()]:
                say(damage)
                return runner.BAD
        start = time.perf_counter()
        _convert(options, dtype)
        _say_written(options, time.perf_counter() - start, ", in place of its source" if replaces else "")
        if options.verify:
            from zerocopy.cli.conversion import difference  # which needs torch

            found = difference(options, dtype, _keep(options.keep))
            cast = f"after conversion to {str(dtype).removeprefix('torch.')}" if dtype else "bit for bit"
            say([f"{escaped(target)}: {found or f'its tensors are equal to its source, {cast}'}"])
            return runner.BAD if found else runner.FINE
    return runner.FINE


def _convert(options: argparse.Namespace, dtype: Any) -> None:
    from zerocopy.converting.converter import convert

    with Progress(f"zerocopy convert: {escaped(options.target)}:", 0) as shown:
        convert(
            options.sources,
            options.target,
            dtype=dtype,
            max_shard_size=options.max_shard_size,
            keep=_keep(options.keep),
            progress=shown.reach,
            unknown=options.unknown,
            strip_prefix=options.strip_prefix,
            ties=options.tied_name or options.ties,
            strict=options.strict or None,
        )


def _say_written(options: argparse.Namespace, seconds: float, replacing: str) -> None:
    """Print the path of the checkpoint, its size, and how fast it was written."""
    files, shards = [Path(options.target)], ""
    if options.max_shard_size is not None:
        from zerocopy.converting import shard_plan
        from zerocopy.loading.formats import shard_index

        path = shard_plan.layout_of(Path(options.target), shard_plan.SUFFIXES).index_path
        index = shard_index.index_named(path)
        files = [path, *(index.shards if index else ())]
        shards = f" and {display.count(len(files) - 1, 'shard')} beside it"
    size = sum(file.stat().st_size for file in files)
    rate = f", {display.size(int(size / seconds))}/s" if seconds > 0 else ""
    where = escaped(str(files[0]), _MAX_LENGTH)
    say([f"wrote {where}{replacing}{shards}: {display.size(size)} in {seconds:.1f} s{rate}"])


def _dtype(parser: argparse.ArgumentParser, name: str | None) -> Any:
    if name is None:
        return None
    import torch

    found = getattr(torch, _SHORT.get(name, name), None)
    if not isinstance(found, torch.dtype):
        parser.error(f"--dtype: torch has no {escaped(name)}")
    if not found.is_floating_point:
        parser.error(f"--dtype converts floating-point tensors, so it cannot be {name}")
    return found


def _keep(prefixes: list[str] | None) -> Callable[[str], bool] | None:
    return None if prefixes is None else lambda name: name.startswith(tuple(prefixes))
