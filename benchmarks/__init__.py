"""The benchmarks, one program: ``python -m benchmarks --help``. The protocol is in docs/benchmarks.md."""
