"""Pass or fail: what the user asked for, and where a comparison falls short of it."""
import math
from dataclasses import dataclass

from .. import given
from ..given import Unfit


@dataclass(frozen=True)
class Tolerances:
    """What a comparison must reach. 0 means "not checked".

    min_psnr       dB.
    max_abs_error  in the units of the values.
    max_rel_error  against the denominator that `metrics` states.
    min_cosine     from 0 to 1.
    exact          every element equal (NaN beside NaN counts as equal).

    Raises Unfit for a negative or non-finite number or none at all, a cosine above 1, an `exact` that is no bool.
    """

    min_psnr: float = 0.0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    min_cosine: float = 0.0
    exact: bool = False

    def __post_init__(self):
        for name in ("min_psnr", "max_abs_error", "max_rel_error", "min_cosine"):
            what = "give a number of 0 or more (0 means that it is not checked)."
            asked = given.number(name, getattr(self, name), what)
            if not math.isfinite(asked) or asked < 0:
                raise Unfit(f"{name} is {asked:g}: {what}")
            object.__setattr__(self, name, asked)
        object.__setattr__(self, "exact", given.flag("exact", self.exact))
        if self.min_cosine > 1:
            raise Unfit(f"min_cosine is {self.min_cosine:g}: a cosine is at most 1.")


def failures(metrics, tolerances):
    """One sentence for each thing that misses its tolerance; empty means passed.

    Elements that are NaN or infinite on one side only fail always: no tolerance of a mean can see them.
    """
    missed = []
    if metrics.unlike:
        missed.append(
            f"{metrics.unlike:,} of {metrics.elements:,} elements are NaN or infinite on one side and not the same on "
            "the other."
        )
    if tolerances.exact and metrics.max_abs > 0:
        missed.append(f"The two are not equal: the largest difference is {metrics.max_abs:.6g}.")
    if tolerances.min_psnr and metrics.psnr < tolerances.min_psnr:
        missed.append(f"PSNR is {metrics.psnr:.2f} dB, below the {tolerances.min_psnr:g} dB asked for.")
    if tolerances.max_abs_error and metrics.max_abs > tolerances.max_abs_error:
        missed.append(
            f"The largest difference is {metrics.max_abs:.6g}, above the {tolerances.max_abs_error:g} allowed."
        )
    if tolerances.max_rel_error and metrics.max_rel > tolerances.max_rel_error:
        missed.append(
            f"The largest relative error is {metrics.max_rel:.6g}, above the {tolerances.max_rel_error:g} allowed."
        )
    if tolerances.min_cosine and metrics.cosine < tolerances.min_cosine:
        missed.append(f"The cosine is {metrics.cosine:.8f}, below the {tolerances.min_cosine:g} asked for.")
    return missed
