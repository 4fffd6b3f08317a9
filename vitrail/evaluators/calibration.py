"""Calibration: does a model that is 80% sure answer right in 80% of the cases?

Answers are put into BINS bins of equal width by their confidence (the probability of the answer), bin b holding
b / BINS < confidence <= (b + 1) / BINS. In each the mean confidence stands against the part that is right:

    ECE = sum_b  n_b / n  |right_b / n_b - mean confidence_b|        (Guo et al., arXiv:1706.04599)
"""

from __future__ import annotations

import numpy as np

BINS = 15


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """ECE of n answers: confidence in (0, 1], float (n,); whether it was right, bool (n,)."""
    confidence = confidence.astype(np.float64)
    b = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (n,)
    gap = np.bincount(b, right, BINS) - np.bincount(b, confidence, BINS)  # (BINS,)
    return float(np.abs(gap).sum() / len(confidence))
