"""Calls that draw random numbers, that seed, and the generators after a call. The second run has another seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import torch

from share_catalog.case import explicit, patched
from zerocopy import share


def drawn_by_torch() -> Any:
    return torch.rand(5000)


@patched(config=["drawn_by_torch"], always=True)
def draws_by_torch(folder: Path) -> Any:
    return drawn_by_torch(), drawn_by_torch()


def drawn_by_numpy() -> Any:
    return numpy.random.rand(5000)


@patched(config=["drawn_by_numpy"], always=True)
def draws_by_numpy(folder: Path) -> Any:
    return drawn_by_numpy(), numpy.random.rand(3)


def drawn_by_python() -> Any:
    return [random.random() for _ in range(5)]


@patched(config=["drawn_by_python"], always=True)
def draws_by_python(folder: Path) -> Any:
    return drawn_by_python(), random.random()


def new_layer() -> Any:
    return torch.nn.Linear(100, 100)


@patched(config=["new_layer"])
def new_layer_of_each_seed(folder: Path) -> Any:
    return new_layer(), torch.rand(3)


def filled_layer() -> Any:
    """Draw random numbers that nobody sees."""
    layer = torch.nn.Linear(100, 100)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1)
    return layer


@patched(config=["filled_layer"])
def random_numbers_that_are_overwritten(folder: Path) -> Any:
    """The generator has moved all the same."""
    return filled_layer(), torch.rand(3)


def seeding() -> Any:
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    return torch.rand(5000), numpy.random.rand(3), random.random()


@patched(config=["seeding"], always=True)
def call_that_seeds(folder: Path) -> Any:
    return seeding(), torch.rand(3), random.random()


@explicit()
def call_that_seeds_for_itself() -> Any:
    return seeding()


@explicit()
def generator_of_the_call() -> Any:
    return torch.rand(5000, generator=torch.Generator().manual_seed(3)), numpy.random.default_rng(3).random(
        5000
    )


def own_generator() -> Any:
    return torch.rand(5000, generator=torch.Generator().manual_seed(3))


@patched(config=["own_generator"], is_shared=True)
def draws_by_a_generator_of_its_own(folder: Path) -> Any:
    return own_generator(), torch.rand(3)


def drawn_by(generator: torch.Generator) -> Any:
    return torch.rand(5000, generator=generator)


@patched(config=["drawn_by"])
def generator_as_an_argument(folder: Path) -> Any:
    """The caller's generator moves."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    return drawn_by(generator), drawn_by(generator), generator.get_state()


def drawn_by_array_generator(generator: Any) -> Any:
    return generator.random(5000)


@patched(config=["drawn_by_array_generator"])
def generator_of_numpy_as_an_argument(folder: Path) -> Any:
    generator = numpy.random.default_rng(torch.initial_seed())
    return drawn_by_array_generator(generator), drawn_by_array_generator(generator)


def drawn_by_python_generator(generator: random.Random) -> Any:
    return [generator.random() for _ in range(3)]


@patched(config=["drawn_by_python_generator"])
def generator_of_python_as_an_argument(folder: Path) -> Any:
    generator = random.Random(torch.initial_seed())
    return drawn_by_python_generator(generator), generator.random()


def forked_generator() -> Any:
    with torch.random.fork_rng():
        return torch.rand(5000)


@patched(config=["forked_generator"])
def draws_from_a_forked_generator(folder: Path) -> Any:
    """The numbers depend on the seed, and the generator is afterwards where it was."""
    return forked_generator(), torch.rand(3)


def restored_generator() -> Any:
    state = torch.get_rng_state()
    torch.manual_seed(11)
    drawn = torch.rand(5000)
    torch.set_rng_state(state)
    return drawn


@patched(config=["restored_generator"])
def draws_after_seeding_and_restores(folder: Path) -> Any:
    return restored_generator(), torch.rand(3)


def shuffled() -> Any:
    numbers = list(range(50))
    random.shuffle(numbers)
    return numbers, torch.randperm(5000)


@patched(config=["shuffled"])
def shuffles(folder: Path) -> Any:
    return shuffled()


def initial_seed() -> Any:
    return torch.initial_seed()


@patched(config=["initial_seed"])
def reads_the_seed(folder: Path) -> Any:
    """The seed counts, and no generator moves."""
    return initial_seed()


def _with_generators(folder: Path) -> Any:
    return share.options(generators=True)


def with_generators(**options: Any) -> Any:
    """Make a case of a function whose seed is a part of the call."""
    return explicit(within=_with_generators, compares_state=True, is_shared=False, **options)


@with_generators(always=True)
def seed_as_a_part_of_the_call() -> Any:
    return torch.rand(5000), numpy.random.rand(5), random.random()


@with_generators()
def new_layer_with_the_seed_as_a_part_of_the_call() -> Any:
    return torch.nn.Linear(100, 100)


@with_generators()
def call_that_seeds_with_the_seed_as_a_part() -> Any:
    return torch.initial_seed(), seeding()


@with_generators()
def normal_numbers_with_the_seed_as_a_part_of_the_call() -> Any:
    """Generators that keep the second of two numbers for later."""
    return random.gauss(0, 1), numpy.random.randn(), torch.randn(3)


def _generators_of_one_seed(folder: Path) -> Any:
    torch.manual_seed(5)
    numpy.random.seed(5)
    random.seed(5)
    return share.options(generators=True)


@explicit(within=_generators_of_one_seed, compares_state=True, is_shared=True)
def one_seed_shares_its_result() -> Any:
    return torch.rand(5000), numpy.random.rand(3), random.gauss(0, 1)


def writes_to(items: list[int], tensor: torch.Tensor) -> int:
    items.append(1)
    tensor.add_(1)
    return len(items)


@patched(config=["writes_to"])
def call_that_changes_its_arguments(folder: Path) -> Any:
    items, tensor = [0], torch.zeros(5000)
    return writes_to(items, tensor), items, tensor


def same(*things: Any) -> Any:
    return things


@patched(config=["same"], always=True)
def call_that_returns_its_arguments(folder: Path) -> Any:
    items, tensor, module = [0], torch.zeros(5000), torch.nn.ReLU()
    found = same(items, tensor, module)
    return [one is other for one, other in zip(found, (items, tensor, module), strict=True)]
