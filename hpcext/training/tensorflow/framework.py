"""The TensorFlow part of a session: its workers, their state, and weighed gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hpcext.training.balance.balancing import Balancing
from hpcext.training.feature import Feature, Framework
from hpcext.training.ranks import Ranks
from hpcext.training.tensorflow.cluster import join
from hpcext.training.tensorflow.state import TensorFlowState


class TensorFlow(Framework):
    """The interface of a session to TensorFlow."""

    use = "use session.dataset(data, batch_size=...) or session.dataset(data, global_batch=...)"
    divisible = "session.dataset(data, global_batch=...)"

    state: TensorFlowState

    def join(self) -> Ranks:
        """Join the workers of this job."""
        return join()

    def make_state(self, objects: dict[str, Any]) -> TensorFlowState:
        """Make the state of the objects that the script names."""
        self.state = TensorFlowState(objects)
        return self.state

    def began(self) -> None:
        """Check that the workers train one model."""
        ranks = self.coordinator.ranks
        if ranks.size > 1 and ranks.rank == 0 and self.state.undistributed():
            self.coordinator.reporter.note(
                f"the {ranks.size} ranks do not average their gradients: the model was not made "
                "in the scope of a strategy, so each rank trains its own model, and a checkpoint "
                "holds only that of rank 0; make model and optimizer inside "
                "`with strategy().scope():`"
            )

    def capturing(self) -> None:
        """Read, on all workers, the variables that are summed over them when they are read."""
        if self.coordinator.ranks.size > 1:
            self.state.hold_synchronised()

    def finished(self) -> None:
        """Leave together, because a worker that is still writing needs the others."""
        self.coordinator.ranks.smallest(0)

    def device_name(self) -> str:
        """Return the name of this worker's device: "cpu", or that of a GPU."""
        for gpu in tf.config.get_visible_devices("GPU"):
            return str(tf.config.experimental.get_device_details(gpu).get("device_name", "gpu"))
        return "cpu"


class Weighing(Feature):
    """The weighing of gradients by the samples of each worker, if the script asks for it.

    Parameters
    ----------
    balancing : Balancing
        Receives the time at which the gradients of this worker are ready.
    """

    def __init__(self, balancing: Balancing) -> None:
        self._balancing = balancing

    def weighted(self, gradients: Any) -> Any:
        """Scale gradients; see :meth:`hpcext.training.tensorflow.Session.weighted`."""
        found = [_values(each) for each in tf.nest.flatten(gradients) if each is not None]
        if self.coordinator.ranks.size == 1 or not found:
            return gradients
        with tf.control_dependencies(found):
            # On a GPU, fetching these values shows when the computation has reached this place.
            there = tf.cast(tf.reshape(found[0], [-1])[:1], tf.float32)
            weight = tf.numpy_function(self._weigh, [there], tf.float64)
        weight.set_shape(())
        return tf.nest.map_structure(lambda each: _times(each, weight), gradients)

    def _weigh(self, _: Any) -> Any:
        return np.float64(self._balancing.weigh() / self.coordinator.ranks.size)

    def before_boundary(self) -> bool:
        """Check that gradients were weighed as often as a step needs it."""
        super().before_boundary()
        weighed, size = self._balancing.weighed, self.coordinator.ranks.size
        balances = self._balancing.balance is not None and size > 1
        if weighed > 1 or (balances and weighed == 0):
            raise RuntimeError(
                f"session.weighted(): {weighed} calls in step {self.coordinator.step - 1}; call it "
                "once, with the gradients of all models, before the optimizer gets them"
            )
        return False


def _values(gradient: Any) -> Any:
    """Return the values of a gradient; an embedding's gradient has only some of its rows."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _times(gradient: Any, weight: Any) -> Any:
    if gradient is None:
        return None
    values = _values(gradient)
    # A NaN in a batch of weight 0 must not count, but NaN times 0 is NaN.
    weighed = tf.math.multiply_no_nan(values, tf.cast(weight, values.dtype))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(weighed, gradient.indices, gradient.dense_shape)
    return weighed
