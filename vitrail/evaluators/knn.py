"""k nearest neighbours on frozen features: the simplest evaluation of a representation, without any training.

    s(q, x) = q.x / (|q| |x|)                                     the cosine; 0 for a feature of zeros
    class of q = argmax over classes of the sum of w(s) over the k nearest of that class
        weighted     w(s) = exp(s / 0.07), as Wu et al. 2018 and DINO have it
        unweighted   w(s) = 1

Exact, ties included: neighbours are those of s in float64, of equal s the one of lower index first; of equal sums
the lower class. The search itself is a float32 product in blocks, so that a million features fit. Its rounding is
bounded: everything within that bound of the k-th stays a candidate, and candidates are ranked by s in float64.
Other quick scores, as those of an index in 8 bits, come with a bound of their own.

n queries, N features to search, D width, m candidates of each query, K classes, b rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.sources import Source
from vitrail.errors import ConfigError
from vitrail.evaluators.score import Score
from vitrail.inference.features import Extraction, Features, as_float64, train_and_test
from vitrail.inference.packed import PackedLinear, operators_work
from vitrail.runtime.progress import progress
from vitrail.runtime.threads import in_order

TEMPERATURE = 0.07
QUERIES, KEYS = 65_536, 8192  # that are searched together
SLICE = 256  # queries of a thread on a CPU, at most: its block of scores, 8 MiB, stays in the cache
LEAST_SLICE = 16  # queries of a thread, so that its products are not all about reading keys
SCORES = 1 << 25  # numbers in a block of scores on other devices: 128 MiB
SPARE = 16  # candidates beyond k
GROUP = 8  # scores of which only the highest is looked at at first
RANKED = 1 << 19  # features of candidates that a thread ranks at a time, in numbers
ELECTED = 4096  # queries that are classified at a time
VOTES = ("weighted", "unweighted")
KS = (1, 5, 10, 20, 50)  # to choose from
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class QuickScores:
    """Scores that tell which keys may be among the nearest of some queries; in place of s, any multiple of it will do
    that is above 0 and the same for all scores of a query."""

    queries: Tensor  # (n, ...), of which `product` takes rows
    product: Callable[[slice], Product]  # keys -> the function of queries (b, ...) that returns scores (b, N)
    # On the difference between a score and s; (n, 1) where it is not that of all queries.
    bound: Tensor | float
    block: int  # keys that are scored together


Quick = Callable[[np.ndarray], QuickScores]  # of queries (n, D)


@dataclass(frozen=True)
class KNN:
    """An evaluator: the scores `knn` (weighted) and `knn_unweighted`."""

    train: Source
    test: Source
    k: Sequence[int] = (20,)  # of several, the best for each vote on a held-out part of `train`
    temperature: float = TEMPERATURE
    extraction: Extraction = field(default_factory=Extraction)

    def __post_init__(self) -> None:
        if not self.k or min(self.k) < 1:
            raise ConfigError(f"k must be one or more whole numbers of at least 1, not {list(self.k)}")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature must be finite and above 0, not {self.temperature:g}")
        check_k(max(self.k), searched(self.train, several=len(self.k) > 1))

    def __call__(self, model: nn.Module) -> Iterator[Score]:
        for vote, (_, value, n) in self.chosen(model).items():
            yield Score("knn" if vote == "weighted" else f"knn_{vote}", value, n)

    def chosen(self, model: nn.Module) -> dict[str, tuple[int, float, int]]:
        """Return for each vote the k, its accuracy on the test set, and the number of test examples."""
        train, test, device = train_and_test(model, self.train, self.test, self.extraction)
        best = dict.fromkeys(VOTES, self.k[0])
        if len(self.k) > 1:
            held_out = self.accuracies(*train.held_out(), self.k, device)
            # Of equals, the smallest k.
            best = {vote: max(self.k, key=lambda k: (held_out[vote, k], -k)) for vote in VOTES}
        tested = self.accuracies(train, test, sorted(set(best.values())), device)
        return {vote: (k, tested[vote, k], len(test)) for vote, k in best.items()}

    def accuracies(
        self, train: Features, queries: Features, ks: Sequence[int], device: torch.device
    ) -> dict[tuple[str, int], float]:
        """Return the accuracy for each vote and k."""
        s, index = neighbours(train.x, queries.x, max(ks), device)  # (n, k) each
        labels, accuracies = train.labels[index], {}  # (n, k)
        for vote in VOTES:
            for k in ks:
                w = weights(s[:, :k], self.temperature if vote == "weighted" else None)  # (n, k)
                predicted = elect(w, labels[:, :k], len(train.class_names))  # (n,)
                accuracies[vote, k] = float((predicted == queries.labels).mean())
        return accuracies


def check_k(k: int, most: int) -> None:
    if not 1 <= k <= most:
        raise ConfigError(f"k = {k} is not between 1 and {most}, the number of features to search")


def fitting_k(train: Source) -> tuple[int, ...]:
    """Return those of KS for which there are enough examples."""
    most = searched(train, several=True)
    return tuple(k for k in KS if k <= most)


def searched(train: Source, *, several: bool) -> int:
    """Count the features that are searched: to choose one of several k, a part is held out."""
    if not several:
        return len(train)
    unseen = Features(np.zeros((len(train), 0)), train.labels, train.class_names, train.name)
    return len(unseen.held_out()[0])


def weights(s: np.ndarray, temperature: float | None) -> np.ndarray:
    """Return w(s), (n, k), relative to the nearest, which changes no vote and never overflows."""
    return np.ones_like(s) if temperature is None else np.exp((s - s[:, :1]) / temperature)


def elect(w: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the class of each query, int64 (n,), by weights and labels of its neighbours (n, k)."""
    classes_of_blocks = []
    for i in range(0, len(w), ELECTED):
        sums = torch.zeros(len(w[i : i + ELECTED]), classes, dtype=torch.float64)  # (b, K)
        sums.scatter_add_(1, torch.from_numpy(labels[i : i + ELECTED]), torch.from_numpy(w[i : i + ELECTED]))
        classes_of_blocks.append(sums.argmax(dim=1).numpy())
    return np.concatenate(classes_of_blocks)  # (n,)


def neighbours(
    keys: np.ndarray,
    queries: np.ndarray,
    k: int,
    device: torch.device | str = "cpu",
    quick: Quick | None = None,
    spare: int = SPARE,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest keys (N, D) of each query (n, D), nearest first: s float64 (n, k), index int64 (n, k).

    `spare`: candidates beyond k; where they are too few for the bound of the scores, the search is done again.
    """
    check_k(k, len(keys))
    device, results = torch.device(device), []
    quick = quick or partial(cosines, keys, device)
    blocks = range(0, len(queries), QUERIES)
    for i in progress(blocks, len(blocks), "neighbours") if len(blocks) > 1 else blocks:
        m = min(len(keys), k + spare)
        results.append(nearest(keys, queries[i : i + QUERIES], k, m, device, quick))
    s, index = (np.concatenate(arrays) for arrays in zip(*results, strict=True))  # (n, k) each
    return s, index


def cosines(keys: np.ndarray, device: torch.device, queries: np.ndarray) -> QuickScores:
    """Return s in the precision of products on a device."""
    dtype = score_type(device)
    # Whatever the order of summation.
    bound = (queries.shape[1] + 8) * torch.finfo(dtype).eps / 2

    def product(rows: slice) -> Product:
        return packed_product(unit(keys[rows], device, dtype))

    return QuickScores(unit(queries, device, dtype), product, bound, KEYS)


def nearest(
    keys: np.ndarray, queries: np.ndarray, k: int, m: int, device: torch.device, quick: Quick
) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbours from m candidates, or from more if an error could hide one behind the last."""
    scores = quick(queries)
    rough, index = candidates(scores, len(keys), m)  # (n, m) each
    possible = rough >= rough[:, k - 1 : k] - 2 * scores.bound  # (n, m)
    most = int(possible.sum(dim=1).max())
    s, at = ranked(keys, queries, index[:, :most].cpu().numpy(), k, device)  # (n, k) each
    unsure = possible[:, -1].cpu().numpy()  # (n,)
    if m < len(keys) and unsure.any():
        s[unsure], at[unsure] = nearest(keys, queries[unsure], k, min(2 * m, len(keys)), device, quick)
    return s, at


def candidates(scores: QuickScores, n_keys: int, m: int) -> tuple[Tensor, Tensor]:
    """Return the m highest scores of each query, highest first, and the index of each: (n, m) each."""
    q = scores.queries
    score = torch.zeros(len(q), 0, device=q.device)
    index = torch.zeros(len(q), 0, dtype=torch.int64, device=q.device)

    def best(rows: slice, product: Product, begin: int) -> tuple[Tensor, Tensor]:
        high, at = promising(product(q[rows]), score[rows], m)  # (b, p) each
        high, at = torch.cat([score[rows], high], 1), torch.cat([index[rows], at + begin], 1)
        high, order = high.topk(min(m, high.shape[1]))
        return high, at.gather(1, order)  # (b, up to m) each

    for i in range(0, n_keys, scores.block):
        keys = slice(i, min(i + scores.block, n_keys))
        size = max(1, SCORES // scores.block)
        if q.device.type == "cpu":
            size = min(SLICE, max(LEAST_SLICE, -(-len(q) // torch.get_num_threads())))
        extend = partial(best, product=scores.product(keys), begin=i)
        score, index = joined(extend, len(q), size, q.device)  # (n, up to m) each
    return score, index


def promising(scores: Tensor, best: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return all scores (b, N) that are above the m-th of the best so far, and others, and their places: (b, p) each.

    Most of them are not above it, which the maximum of a group tells: a block is read once, and not sorted.
    """
    b, N = scores.shape
    if best.shape[1] == m and N % GROUP == 0:
        groups = scores.unflatten(1, (GROUP, -1))  # (b, GROUP, G)
        above = groups.amax(dim=1) > best[:, -1:]  # (b, G)
        row, group = above.nonzero(as_tuple=True)  # (r,) each
        counts = torch.bincount(row, minlength=b)  # (b,)
        widest = int(counts.max())
        if widest * GROUP <= N // 4:
            slot = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]  # (r,)
            few = scores.new_full((b, widest, GROUP), -torch.inf)
            few[row, slot] = groups[row, :, group]
            at = row.new_zeros(b, widest, GROUP)
            at[row, slot] = group[:, None] + groups.shape[2] * torch.arange(GROUP, device=row.device)
            return few.flatten(1), at.flatten(1)
    return scores.topk(min(m, N))


def ranked(
    keys: np.ndarray, queries: np.ndarray, index: np.ndarray, k: int, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k of the candidates (n, m) by s, then by index."""
    index = np.sort(index, axis=1)  # (n, m); a stable sort by s keeps this order among equals

    def rank(rows: slice) -> tuple[Tensor, Tensor]:
        q = as_float64(queries[rows], device)[:, None]  # (b, 1, D)
        x = as_float64(keys[index[rows]], device)  # (b, m, D)
        norms = q.square().sum(dim=2).sqrt() * x.square().sum(dim=2).sqrt()  # (b, m)
        cosine = (q * x).sum(dim=2) / torch.where(norms > 0, norms, 1)  # (b, m)
        high, order = cosine.sort(dim=1, descending=True, stable=True)
        return high[:, :k], torch.from_numpy(index[rows]).to(device).gather(1, order[:, :k])  # (b, k) each

    size = max(1, RANKED // (index.shape[1] * keys.shape[1]))
    s, at = joined(rank, len(queries), size, device)  # (n, k) each
    return s.cpu().numpy(), at.cpu().numpy()


def joined(
    function: Callable[[slice], tuple[Tensor, Tensor]], n: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Concatenate function(rows) of n rows, `size` at a time; on a CPU each thread computes rows of its own."""
    slices = [slice(i, i + size) for i in range(0, n, size)]
    threads = min(torch.get_num_threads(), len(slices)) if device.type == "cpu" else 1
    first, second = zip(*in_order(function, slices, threads), strict=True)
    return torch.cat(first), torch.cat(second)


def packed_product(block: Tensor) -> Product:
    """Return q -> q block^T: on x86 CPUs by the kernels of packed.py, which are faster than matmul."""
    if block.device.type == "cpu" and block.dtype == torch.float32 and operators_work():
        return PackedLinear(block)
    return lambda q: q @ block.T


def unit(x: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return rows of length 1, rounded once."""
    t = as_float64(x, device)
    norms = t.square().sum(dim=1, keepdim=True).sqrt()
    return (t / torch.where(norms > 0, norms, 1)).to(dtype)


def score_type(device: torch.device) -> torch.dtype:
    """Return float32 if its products keep that precision; on other devices a setting may reduce it."""
    plain = device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if plain else torch.float64
