"""The time of a training step on any number of GPUs and with any batch: Pollux, section 3.2.

A step computes gradients, for a time that depends on the batch of a GPU, and synchronises them, for
a time that depends on the number of GPUs and on whether they are in one node. The two overlap to
some degree. Seven parameters describe this; they are fitted to measured steps.

    T_grad = alpha_grad + beta_grad * m                                         (eq. 8)
    T_sync = 0 on one GPU, else alpha + beta * (K - 2), of a node or of several (eq. 9)
    T_iter = s * T_grad + (T_grad^gamma + T_sync^gamma)^(1 / gamma)             (eq. 11)

for K GPUs, a batch of m samples on each, and s accumulation steps before the one that synchronises.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import threadpoolctl
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MOST_GAMMA = 10.0
"""Section 4.1: gamma lies in [1, 10]; at 10 computing and synchronising overlap almost fully."""

ALIKE = 1.1
"""Factor by which batch sizes must differ to tell alpha_grad from beta_grad."""

FEWER = 1e-5
"""Weight of (gamma - 1)^2 beside the mean squared logarithmic error: of parameters that explain the
measurements equally well, those with the least synchronisation are preferred."""

STEADY = 1e-3
"""Weight of beta_local^2 and beta_node^2, in steps: if gradients hide the synchronisation of a few
GPUs, noise is easily mistaken for a time that grows with them."""

STARTS = (1.0, 3.0)
"""Values of gamma from which the search starts. From one alone it missed the optimum in a tenth of
random instances; two more never found better ones."""

LEAST = 1e-3
"""Smallest parameter of a start, in steps: where gamma > 1, a synchronisation of 0 stays 0."""

SHORTEST = 1e-6
"""Lower limit of the parameters of a pass, in units of a step."""

TINY = 1e-12
"""Negligible time in units of a step, whose logarithm still exists."""


class Throughput(NamedTuple):
    """The parameters theta_sys of a job (eq. 12).

    Attributes
    ----------
    alpha_grad : float
        Seconds of a forward and backward pass, independent of the batch.
    beta_grad : float
        Further seconds for each sample of a GPU.
    alpha_local, alpha_node : float
        Seconds to synchronise two GPUs: in one node, or in two.
    beta_local, beta_node : float
        Further seconds for each further GPU.
    gamma : float
        In [1, 10]: 1 for no overlap, 10 for nearly a full one.
    """

    alpha_grad: float
    beta_grad: float
    alpha_local: float = 0.0
    beta_local: float = 0.0
    alpha_node: float = 0.0
    beta_node: float = 0.0
    gamma: float = 1.0

    def gradient_s(self, batch: ArrayLike) -> Floats:
        """Return the seconds of one forward and backward pass with `batch` samples (eq. 8)."""
        return self.alpha_grad + self.beta_grad * np.asarray(batch, dtype=np.float64)

    def sync_s(self, gpus: ArrayLike, nodes: ArrayLike) -> Floats:
        """Return the seconds to synchronise GPUs on nodes (eq. 9)."""
        gpus, nodes = np.asarray(gpus), np.asarray(nodes)
        further = np.maximum(gpus - 2, 0)
        seconds: Floats = np.where(
            nodes > 1,
            self.alpha_node + self.beta_node * further,
            self.alpha_local + self.beta_local * further,
        )
        return np.asarray(np.where(gpus > 1, seconds, 0.0))

    def step_s(
        self, gpus: ArrayLike, nodes: ArrayLike, batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> Floats:
        """Return the seconds of an optimizer step (eq. 11).

        Parameters
        ----------
        gpus, nodes : int or array of int
            `gpus` at least 1, on `nodes` nodes; all four are broadcast.
        batch : float or array of float
            Batch on each GPU in each pass, in any unit: that of `beta_grad`.
        accumulation : int or array of int
            Passes before the one that synchronises, the paper's s.

        Returns
        -------
        array of float
            In the broadcast shape of the four.
        """
        gradient_s = self.gradient_s(batch)
        last_s = overlapped(gradient_s, self.sync_s(gpus, nodes), self.gamma)
        return np.asarray(accumulation) * gradient_s + last_s

    def samples_per_s(
        self, gpus: ArrayLike, nodes: ArrayLike, batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> Floats:
        """Return samples of all GPUs per second (eq. 7); 0 on no GPU. See :meth:`step_s`."""
        total = np.asarray(gpus) * np.asarray(batch) * (np.asarray(accumulation) + 1.0)
        return np.asarray(total / self.step_s(gpus, nodes, batch, accumulation))


def overlapped(gradient_s: Floats, sync_s: Floats, gamma: float) -> Floats:
    """Return the seconds of two parts that overlap (eq. 10), between maximum and sum.

    Parameters
    ----------
    gradient_s, sync_s : array of float
        Seconds of each part; broadcast.
    gamma : float
        In [1, 10], as in :class:`Throughput`.
    """
    longer = np.maximum(gradient_s, sync_s)
    # Relative to the longer one, because a power of small seconds would underflow.
    ratio = np.minimum(gradient_s, sync_s) / np.where(longer > 0, longer, 1.0)
    return np.asarray(longer * (1.0 + ratio**gamma) ** (1.0 / gamma))


class Observations(NamedTuple):
    """Measured steps; arrays of one shape (n,).

    Attributes
    ----------
    gpus, nodes : array of int
        GPUs of the job, at least 1, and the nodes that they are on.
    batch : array of float
        Samples on each GPU in each pass, > 0.
    accumulation : array of int
        Passes before the one that synchronises, 0 or more.
    step_s : array of float
        Seconds of an optimizer step, > 0.
    """

    gpus: NDArray[np.int64]
    nodes: NDArray[np.int64]
    batch: Floats
    accumulation: NDArray[np.int64]
    step_s: Floats


def fit(
    observations: Observations,
    start: Throughput | None = None,
    constant: float = 0.0,
    *,
    own_threads: bool = True,
) -> Throughput:
    """Fit the parameters to measured steps.

    They minimise the mean squared logarithmic error, by L-BFGS-B with alpha, beta >= 0 and gamma in
    [1, 10], as in section 4.1. Of many optimal ones, those with a small gamma and with links that
    slow down little with further GPUs are preferred. Untried configurations are assumed to scale
    perfectly:

    - The local pair is 0 until the job had several GPUs in one node, and the node pair until it was
      on several nodes. (For the latter the paper names the local pair again, which is a slip.) But
      once several GPUs in one node were tried, several nodes are assumed to take as long. By the
      paper they would still take 0, so that a job would rather be spread; the published AdaptDL
      has such a bound too.
    - The beta of a link is 0 until it was used with two numbers of GPUs. (The paper says: until
      more
      than two GPUs were used at all. With one number alone, alpha and beta cannot be
      distinguished.)

    Parameters
    ----------
    observations : Observations
        At least one. All count equally, so combine repeated ones into a mean first.
    start : Throughput, optional
        An earlier fit, from which the search starts too.
    constant : float
        Share of a pass that is taken as `alpha_grad` while only one batch size was measured: with 0
        it scales perfectly with a smaller batch.
    own_threads : bool
        Whether the threads of linear algebra are not in use by others, so that all but one can be
        stopped. In a training they belong to the training.

    Returns
    -------
    Throughput

    Raises
    ------
    ValueError
        An observation is not valid, or `constant` is not in [0, 1].
    """
    _check(observations, constant)
    problem = _Problem(observations, constant)
    apart = problem.apart()
    starts = [np.append(apart, gamma) for gamma in STARTS]
    if start is not None:
        starts.append(problem.scaled(start))
    return problem.unscaled(problem.solve(starts, own_threads))


def _check(observations: Observations, constant: float) -> None:
    if not 0 <= constant <= 1:
        raise ValueError(f"constant={constant}: must be in [0, 1]")
    arrays = {
        name: np.asarray(a) for name, a in zip(Observations._fields, observations, strict=True)
    }
    shapes = {a.shape for a in arrays.values()}
    if len(shapes) != 1 or len(shapes.pop()) != 1 or not len(arrays["gpus"]):
        raise ValueError(f"observations: shapes {[a.shape for a in arrays.values()]}, not one (n,)")
    valid = {
        "gpus": (arrays["gpus"] >= 1, "at least 1"),
        "nodes": ((arrays["nodes"] >= 1) & (arrays["nodes"] <= arrays["gpus"]), "in [1, gpus]"),
        "batch": (arrays["batch"] > 0, "> 0"),
        "accumulation": (arrays["accumulation"] >= 0, "0 or more"),
        "step_s": (arrays["step_s"] > 0, "> 0"),
    }
    for name, (inside, what) in valid.items():
        right = inside & np.isfinite(arrays[name])
        if not right.all():
            at = int(np.argmin(right))
            raise ValueError(f"observation {at}: {name}={arrays[name][at]}: must be {what}")


class _Problem:
    """The fit in normalised units, in which steps and batches of any size are about 1.

    Its unknowns are a vector x: those of a pass, of the links that were tried, and gamma.

    Attributes
    ----------
    split : array of float, shape (p, 2)
        alpha_grad and beta_grad of each of the p = 1 or 2 unknowns of a pass.
    gradient : array of float, shape (n, p)
        Times these unknowns: seconds of a pass.
    sync : array of float, shape (n, q)
        Times the next q of 0 to 4 unknowns: seconds of the synchronisation.
    columns : list of int
        Which of alpha_local, beta_local, alpha_node, beta_node these are.
    weights, ideal : array of float, shape (p + q + 1,)
        Preferences if measurements do not decide: weights of squared differences from the ideal.
    """

    def __init__(self, observations: Observations, constant: float) -> None:
        gpus, nodes, batch, self.accumulation, step_s = (
            np.asarray(each, dtype=np.float64) for each in observations
        )
        self.unit_s = float(np.exp(np.log(step_s).mean()))
        self.unit_batch = float(np.exp(np.log(batch).mean()))
        self.logs = np.log(step_s / self.unit_s)
        one = batch.max() < ALIKE * batch.min()
        self.split = np.array([[constant, 1.0 - constant]]) if one else np.eye(2)
        self.gradient = np.stack([np.ones(len(batch)), batch / self.unit_batch], 1) @ self.split.T
        further = np.maximum(gpus - 2, 0.0)
        self.unit_gpus = max(1.0, float(further.max()))
        links = [(gpus > 1) & (nodes == 1), nodes > 1]
        every = [part for link in links for part in (link, link * further / self.unit_gpus)]
        self.columns: list[int] = []
        for number, link in enumerate(links):
            tried = len(np.unique(further[link]))
            self.columns += range(2 * number, 2 * number + min(tried, 2))
        self.sync = np.stack(every, 1)[:, np.array(self.columns, dtype=np.int64)]
        grows = [STEADY / self.unit_gpus**2 * (column % 2) for column in self.columns]
        self.weights = np.array([0.0] * len(self.split) + grows + [FEWER])
        self.ideal = np.append(np.zeros(len(self.weights) - 1), 1.0)

    def apart(self) -> Floats:
        """Return the best parameters without overlap and gamma, a linear problem."""
        from scipy.optimize import nnls  # noqa: PLC0415

        rows = np.hstack([self.gradient * (self.accumulation + 1.0)[:, None], self.sync])
        # Relative errors, since they equal logarithmic ones if these are small.
        found: Floats = nnls(rows / np.exp(self.logs)[:, None], np.ones(len(rows)))[0]
        return found

    def scaled(self, theta: Throughput) -> Floats:
        """Convert parameters to unknowns."""
        gradient = np.array([theta.alpha_grad, theta.beta_grad * self.unit_batch])
        if len(self.split) == 1:
            gradient = gradient.sum(keepdims=True)
        sync = np.array(theta[2:6]) * np.tile([1.0, self.unit_gpus], 2)
        return np.concatenate(
            [gradient / self.unit_s, sync[self.columns] / self.unit_s, [theta.gamma]]
        )

    def unscaled(self, x: Floats) -> Throughput:
        """Convert unknowns to parameters, with assumptions for those that were not fitted."""
        passes = len(self.split)
        alpha, beta = (x[:passes] @ self.split * self.unit_s).tolist()
        sync = np.zeros(4)
        sync[self.columns] = x[passes:-1] * self.unit_s
        sync[1::2] /= self.unit_gpus
        if 2 not in self.columns:
            sync[2:] = sync[:2]
        gamma = float(x[-1]) if self.columns else 1.0
        return Throughput(*[alpha, beta / self.unit_batch, *sync.tolist(), gamma])

    def error(self, x: Floats) -> tuple[float, Floats]:
        """Return the mean squared logarithmic error with preferences, and its derivatives."""
        passes, gamma = len(self.split), float(x[-1])
        gradient_s, sync_s = self.gradient @ x[:passes], self.sync @ x[passes:-1]
        longer = np.maximum(np.maximum(gradient_s, sync_s), TINY)
        ratio = np.maximum(np.minimum(gradient_s, sync_s) / longer, TINY)
        power = ratio**gamma
        last_s = longer * (1.0 + power) ** (1.0 / gamma)
        step_s = self.accumulation * gradient_s + last_s
        off = np.log(step_s) - self.logs
        by_step = 2.0 / len(off) * off / step_s
        by_gradient = self.accumulation + (gradient_s / last_s) ** (gamma - 1.0)
        by_sync = (sync_s / last_s) ** (gamma - 1.0)
        by_gamma = power / (1.0 + power) * np.log(ratio) - np.log1p(power) / gamma
        away = x - self.ideal
        derivatives = 2.0 * self.weights * away
        derivatives[:passes] += (by_step * by_gradient) @ self.gradient
        derivatives[passes:-1] += (by_step * by_sync) @ self.sync
        derivatives[-1] += by_step @ (by_gamma * last_s / gamma)
        return float(np.mean(off**2) + self.weights @ away**2), derivatives

    def solve(self, starts: list[Floats], own_threads: bool) -> Floats:
        """Return the best optimum that is found from several starts."""
        from scipy.optimize import minimize  # noqa: PLC0415

        lower = np.append(np.zeros(len(starts[0]) - 1), 1.0)
        # All time of a job that was never on one GPU could be synchronisation, and one GPU would
        # then be infinitely fast.
        lower[: len(self.split)] = SHORTEST
        upper = np.append(np.full(len(starts[0]) - 1, np.inf), MOST_GAMMA)
        alone = _blas().limit(limits=1, user_api="blas") if own_threads else nullcontext()
        with alone:
            found = [
                minimize(
                    self.error,
                    np.clip(np.maximum(start, LEAST), lower, upper),
                    jac=True,
                    method="L-BFGS-B",
                    bounds=np.stack([lower, upper], 1),
                    options={"maxiter": 500, "ftol": 1e-14, "gtol": 1e-9},
                )
                for start in starts
            ]
        best: Floats = min(found, key=lambda each: float(each.fun)).x
        return best


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    """Return the controller of the linear-algebra threads.

    A second thread has nothing to do for seven parameters, and waits for its core: on a busy
    machine a fit took three times as long with it.
    """
    return threadpoolctl.ThreadpoolController()
