"""How many requests for MIG partitions a node serves, depending on the order of the partitions in its slices.

Requests for profiles and whole GPUs arrive at random and leave at random; one that finds no room is lost. The scheduler
is first fit and the slices never change, so the order is all a driver can choose. Compared with it: the order of the
tables, a scheduler that sees the state and takes the place that costs least (best fit), and one that may move what
runs. The last serves whatever it can; as one large request may cost many small ones, it is not always the best.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Protocol

from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import load_node
from driver.inventory.profiles import load_products
from driver.model.device import MigPartition
from driver.model.snapshot import Snapshot
from driver.slices.counters import counters_of
from driver.slices.order import arrange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from driver.model.device import Device
    from driver.slices.counters import Counters

PRODUCTS = ("h100", "a100-80", "b200", "a30", "rtx-pro-6000")
WHOLE = "whole GPU"
LOADS = (0.6, 0.8, 1.0)  # memory slices asked for at a time, as a share of those that there are


@dataclass(frozen=True, slots=True)
class Place:
    """One device, as the counters see it: packed into a number whose fields are amounts."""

    gpu: int
    kind: str  # a profile's name, or WHOLE
    size: int  # memory slices
    need: int


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody who comes, stays if there is room, and goes; times are in mean stays."""

    at: float
    kind: str
    stay: float


class Packing:
    """Amounts of many counters in one number: each in a field with a bit to spare, which a shortage clears."""

    def __init__(self, counters: Counters) -> None:
        self._shifts: dict[str, int] = {}
        shift = 0
        for name, total in counters.totals.items():
            self._shifts[name] = shift
            shift += total.bit_length() + 2
        spare = {name: self._shifts[name] + total.bit_length() + 1 for name, total in counters.totals.items()}
        self.guard = sum(1 << bit for bit in spare.values())
        self.whole = self.pack(counters.totals)

    def pack(self, amounts: Mapping[str, int]) -> int:
        """Return amounts as one number."""
        return sum(amount << self._shifts[name] for name, amount in amounts.items())


class Board:
    """A node's devices in two orders, and which of them fit beside each other."""

    def __init__(self, product: str, gpus: int) -> None:
        spec = f"{product}:{gpus}@mig" if not _product_switches(product) else f"{product}:{gpus}"
        found = build_gpus(load_node(spec, load_products()), "bench")
        snapshot = Snapshot(gpus=found, dynamic_mig=frozenset(gpu.uuid for gpu in found))
        mig = found[0].mig
        counters = counters_of(mig) if mig is not None else None
        if mig is None or counters is None:
            raise ValueError(f"{product} can't be partitioned")
        self.gpus, self.slices, self._counters = gpus, mig.memory_slices, counters
        self.packing = Packing(counters)
        devices = snapshot.devices()
        self.chosen = [self._place(device) for device in arrange(devices)]
        tables = [profile.name for profile in mig.profiles]
        self.naive = [self._place(device) for device in sorted(devices, key=lambda one: _as_in(tables, one))]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Memory slices by kind."""
        return {place.kind: place.size for place in self.chosen}

    def empty(self) -> list[int]:
        """Return what is free of each GPU when all is."""
        return [self.packing.whole | self.packing.guard] * self.gpus

    def fits(self, free: int, need: int) -> bool:
        """Say whether what is free suffices."""
        return (free - need) & self.packing.guard == self.packing.guard

    def _place(self, device: Device) -> Place:
        gpu = device.gpu.index
        if isinstance(device, MigPartition):
            need = self.packing.pack(self._counters.taken_by(device.profile, device.placement))
            return Place(gpu, device.profile.name, device.placement.size, need)
        return Place(gpu, WHOLE, self.slices, self.packing.whole)


class Strategy(Protocol):
    """Finds room, or doesn't."""

    def take(self, ticket: int, kind: str) -> bool:
        """Take room for a request if there is some."""
        ...

    def give(self, ticket: int) -> None:
        """Give back what a request took."""
        ...


class FirstFit:
    """The first place in an order, as Kubernetes' scheduler does."""

    def __init__(self, board: Board, order: Sequence[Place]) -> None:
        self.board = board
        self.free = board.empty()
        self.held: dict[int, Place] = {}
        self.by_kind: dict[str, list[Place]] = defaultdict(list)
        for place in order:
            self.by_kind[place.kind].append(place)

    def take(self, ticket: int, kind: str) -> bool:
        """Take the place that `choose` finds."""
        place = self.choose(kind)
        if place is not None:
            self.free[place.gpu] -= place.need
            self.held[ticket] = place
        return place is not None

    def give(self, ticket: int) -> None:
        """Give it back."""
        place = self.held.pop(ticket)
        self.free[place.gpu] += place.need

    def choose(self, kind: str) -> Place | None:
        """Return the first place that is free."""
        return next((one for one in self.by_kind[kind] if self.board.fits(self.free[one.gpu], one.need)), None)


class BestFit(FirstFit):
    """The place that takes least from what could still be asked for: it sees the state, which an order can't."""

    def __init__(self, board: Board, weights: Mapping[str, float]) -> None:
        super().__init__(board, board.chosen)
        alike = [one for one in board.chosen if one.gpu == 0]
        counts = {kind: sum(one.kind == kind for one in alike) for kind in board.sizes}
        self._worths = [(one.need, (weights.get(one.kind, 0) + 1e-3) * one.size / counts[one.kind]) for one in alike]
        self._known: dict[int, float] = {}

    def choose(self, kind: str) -> Place | None:
        """Return the place of the smallest loss."""
        free = [one for one in self.by_kind[kind] if self.board.fits(self.free[one.gpu], one.need)]
        return (
            min(free, key=lambda one: self._worth(self.free[one.gpu]) - self._worth(self.free[one.gpu] - one.need))
            if free
            else None
        )

    def _worth(self, free: int) -> float:
        if free not in self._known:
            self._known[free] = sum(worth for need, worth in self._worths if self.board.fits(free, need))
        return self._known[free]


class Moving(FirstFit):
    """First fit that may move everything, the largest first: more than any driver can do."""

    def take(self, ticket: int, kind: str) -> bool:
        """Take room; pack anew if there is none."""
        if super().take(ticket, kind):
            return True
        anew = FirstFit(self.board, self.board.chosen)
        kinds = {**{other: place.kind for other, place in self.held.items()}, ticket: kind}
        ordered = sorted(kinds, key=lambda one: (-self.board.sizes[kinds[one]], len(self.by_kind[kinds[one]]), one))
        if not all(anew.take(one, kinds[one]) for one in ordered):
            return False
        self.free, self.held = anew.free, anew.held
        return True


def arrivals(board: Board, weights: Mapping[str, float], load: float, number: int, seed: int) -> Iterator[Request]:
    """Yield requests: Poisson arrivals, exponential stays."""
    rng = random.Random(seed)  # the same each time is the point
    kinds, shares = list(weights), list(weights.values())
    mean = sum(board.sizes[kind] * share for kind, share in weights.items()) / sum(shares)
    rate, now = load * board.gpus * board.slices / mean, 0.0
    for _ in range(number):
        now += rng.expovariate(rate)
        yield Request(now, rng.choices(kinds, shares)[0], rng.expovariate(1.0))


def served(strategy: Strategy, requests: Sequence[Request]) -> float:
    """Return the share of requests that found room, the first tenth aside, in which the node fills up."""
    leaving: list[tuple[float, int]] = []
    warm, found = len(requests) // 10, 0
    for ticket, request in zip(count(), requests, strict=False):
        while leaving and leaving[0][0] <= request.at:
            strategy.give(heapq.heappop(leaving)[1])
        if strategy.take(ticket, request.kind):
            heapq.heappush(leaving, (request.at + request.stay, ticket))
            found += ticket >= warm
    return found / (len(requests) - warm)


def mixes(board: Board) -> dict[str, dict[str, float]]:
    """Return what is asked for: everything alike, small things more, and plain profiles only."""
    return {
        "all alike": dict.fromkeys(board.sizes, 1.0),
        "small more": {kind: 1 / size for kind, size in board.sizes.items()},
        "plain only": {kind: 1.0 for kind in board.sizes if "+" not in kind},
    }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Shares of requests served, of one mix on one node."""

    product: str
    gpus: int
    mix: str
    naive: float
    chosen: float
    best_fit: float
    moving: float


def compare(product: str, gpus: int, *, number: int = 4000, seeds: Sequence[int] = (1, 2)) -> Iterator[Outcome]:
    """Yield the comparison for each mix: means over loads and seeds, the same requests for all."""
    board = Board(product, gpus)
    for mix, weights in mixes(board).items():
        runs = [list(arrivals(board, weights, load, number, seed)) for load in LOADS for seed in seeds]
        yield Outcome(
            product=product,
            gpus=gpus,
            mix=mix,
            naive=_mean([served(FirstFit(board, board.naive), run) for run in runs]),
            chosen=_mean([served(FirstFit(board, board.chosen), run) for run in runs]),
            best_fit=_mean([served(BestFit(board, weights), run) for run in runs]),
            moving=_mean([served(Moving(board, board.chosen), run) for run in runs]),
        )


def table(number: int = 4000) -> str:
    """Run all comparisons; return them for people."""
    head = f"{'GPUs':<18}{'asked for':<12}{'naive':>8}{'chosen':>8}{'best fit':>10}{'moving':>8}{'gap closed':>12}"
    lines = ["Share of requests served, by the order of the partitions in the slices", "", head]
    for product in PRODUCTS:
        for gpus in (1, 8):
            lines += [_line(outcome) for outcome in compare(product, gpus, number=number)]
    return "\n".join(lines)


def _line(one: Outcome) -> str:
    gap = one.best_fit - one.naive
    closed = f"{(one.chosen - one.naive) / gap:.0%}" if gap > 0.002 else "no gap"
    shares = f"{one.naive:>8.1%}{one.chosen:>8.1%}{one.best_fit:>10.1%}{one.moving:>8.1%}"
    return f"{f'{one.gpus} x {one.product}':<18}{one.mix:<12}{shares}{closed:>12}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _as_in(tables: Sequence[str], device: Device) -> tuple[int, int, int]:
    """Sort as NVIDIA's tables do: GPU by GPU, the whole, then profile by profile, each from the first slice on."""
    if isinstance(device, MigPartition):
        return device.gpu.index, tables.index(device.profile.name), device.placement.start
    return device.gpu.index, -1, 0


def _product_switches(product: str) -> bool:
    mig = load_products()[product].mig
    return mig is not None and mig.switches_at_once
