"""PSNR, and the checks that decide the exit status of the demo."""
import math
from dataclasses import asdict, dataclass

DATA_RANGE = 2.0  # a picture in [-1, 1]
PADS, PAST_THRESHOLD, FAULTY = 51, 12, 10
STOCK_BELOW, REPAIRED_ABOVE = 15.0, 60.0
SPREAD = 0.3  # a picture that does not fill its range hides what is wrong with it


def psnr(picture, reference):
    """Peak signal-to-noise ratio in dB, data range 2; inf if equal, NaN if `picture` holds one.

    Raises ValueError for two shapes: a picture with frames missing must not be broadcast into a match.
    """
    if picture.shape != reference.shape:
        raise ValueError(f"the picture is {tuple(picture.shape)}, the reference {tuple(reference.shape)}")
    error = (picture.double() - reference.double()).square().mean().item()
    if math.isnan(error):
        return math.nan
    return math.inf if error == 0 else 10 * math.log10(DATA_RANGE**2 / error)


@dataclass(frozen=True)
class Check:
    """One thing that has to hold: what it is, what was found, what was wanted."""

    name: str
    found: object
    wanted: str
    passed: bool

    def as_dict(self):
        return asdict(self)


def checks(cpu, stock, repaired, software):
    """The checks of this run. `stock` and `repaired` carry "psnr_db" beside what their phase wrote.

    On a Mac whose torch or macOS pads rightly by itself, nothing is patched and nothing is wrong: stock then has
    to meet what repaired has to. Other MPSGraph ops keep driver memory there too, so growth is only compared.
    """
    pads = cpu["pads"]
    expected = [
        _exactly("pads of the decode, counted on the CPU", pads["calls"], PADS),
        _exactly("  past the threshold", pads["past_threshold"], PAST_THRESHOLD),
        _exactly("  faulty by the rule", pads["faulty_by_rule"], FAULTY),
        Check("CPU: spread of the picture (standard deviation)", _round(cpu["spread"]), f"> {SPREAD:g}",
              cpu["spread"] > SPREAD),
        _above("repaired: PSNR to the CPU, dB", repaired["psnr_db"]),
    ]
    if repaired["kernel"]["state"] == "stock" and not software:
        return [*expected, _above("stock: PSNR to the CPU, dB (this torch pads rightly)", stock["psnr_db"])]
    low = stock["psnr_db"]
    grown, kept = stock["memory"]["driver_growth"], repaired["memory"]["driver_growth"]
    expected += [
        Check("stock: PSNR to the CPU, dB", _round(low), f"< {STOCK_BELOW:g}", low < STOCK_BELOW),
        _exactly("stock: pads taken by stock", stock["pad_calls"]["stock"], PADS),
        _exactly("repaired: pads taken by our kernel", repaired["pad_calls"]["metal_kernels"], PADS),
        Check("stock: growth of driver memory, bytes", grown, "> 0", grown > 0),
    ]
    name = "repaired: growth of driver memory, bytes"
    none = _exactly(name, kept, 0) if software else Check(name, kept, "less than stock's", kept < grown)
    if software:
        expected.append(_exactly("repaired: with the device's checks on", repaired["device"]["checked"], True))
    return [*expected, none]


def _exactly(name, value, wanted):
    return Check(name, value, str(wanted), value == wanted)


def _above(name, value):
    return Check(name, _round(value), f"> {REPAIRED_ABOVE:g}", value > REPAIRED_ABOVE)


def _round(value):
    return round(value, 2) if math.isfinite(value) else str(value)
