"""The rejection of a single point, as a later step than the parser makes it."""

import numpy as np

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage


def rejected_point(
    batch: PointBatch, point: int, reason: Reason = Reason.BAD_TAG, stage: Stage = Stage.ENCODE
) -> Rejected:
    """The rejection of one point of a batch."""
    (rejected,) = batch.reject(np.array([point]), lambda _: RejectedError(reason, "why"), stage)
    return rejected
