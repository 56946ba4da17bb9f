"""Says which files take zerocopy most time and memory: ``python -m attacks``."""

from attacks import CATALOG
from attacks.attack import MEBIBYTE
from attacks.runner import Runner

SHOWN = 10


def main() -> None:
    runner = Runner()
    outcomes = [
        (family.title, attack.name, runner.load(attack)) for family in CATALOG for attack in family.attacks
    ]
    runner.close()
    print(f"{len(outcomes)} files; most processor time:")
    for title, name, outcome in sorted(outcomes, key=lambda row: -row[2].seconds)[:SHOWN]:
        print(f"{outcome.seconds:8.3f} s    {title}: {name}: {outcome.word}")
    print("most memory:")
    for title, name, outcome in sorted(outcomes, key=lambda row: -row[2].memory)[:SHOWN]:
        print(f"{outcome.memory / MEBIBYTE:6.1f} MiB    {title}: {name}: {outcome.word}")


if __name__ == "__main__":
    main()
