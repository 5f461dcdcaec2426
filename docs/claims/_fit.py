"""The exponent of a power law, fitted to figures of several sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Quantiles 0.975 of Student's t for 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> tuple[float, float, float]:
    """Low, middle and high of b in figure = a size^b, by least squares of the logarithms.

    The interval is the usual 95 % one of a slope, from how far the points lie off the line: it is wide where the
    figures do not follow a power law, and says little about the noise of each point.

    Raises:
        ValueError: fewer than 3 points or more than 12, or one that is not positive.
    """
    if len(sizes) != len(figures) or not 3 <= len(sizes) <= len(_T) + 2 or min(*sizes, *figures) <= 0:
        raise ValueError(f"got sizes {list(sizes)} and figures {list(figures)}; expected 3 to 12 positive pairs.")
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(figures, float))
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    off = y - y.mean() - slope * x
    freedom = len(sizes) - 2
    reach = float(_T[freedom - 1] * np.sqrt(off @ off / freedom / (x @ x)))
    return slope - reach, slope, slope + reach
