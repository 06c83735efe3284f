"""Compare two values: the numbers, the verdict, the texts and the picture in one record."""
from dataclasses import dataclass

from . import metrics, pictures, report, values, verdict


@dataclass(frozen=True)
class Comparison:
    """What a parity node hands on. `data` is the JSON-serialisable report before it is written."""

    metrics: metrics.Metrics
    failures: list
    text: str
    data: dict
    picture: pictures.Picture

    @property
    def passed(self):
        return not self.failures

    @property
    def json(self):
        return report.as_json(self.data)


def compare(value, reference, tolerances, data_range=0.0, tick=lambda: None, names=("value", "reference")):
    """`Comparison` of what two wires carry.

    value, reference  as they come over the wire (see `values.read`), or `Value`s.
    tolerances        `verdict.Tolerances`.
    data_range        for PSNR; 0 chooses by kind.
    tick              called often; raise from it to cancel.
    names             what the two are called in messages and captions.

    Raises ParityError, with one sentence for the user, for whatever can't be compared.
    """
    value, reference = (
        thing if isinstance(thing, values.Value) else values.read(name, thing)
        for name, thing in zip(names, (value, reference), strict=True)
    )
    value, reference = values.settle(value, reference)
    numbers = metrics.compare(value, reference, data_range, tick)
    missed = verdict.failures(numbers, tolerances)
    picture = pictures.sheet(value, reference, numbers, tick)
    text = report.as_text(value, reference, numbers, missed)
    data = report.as_dict(value, reference, numbers, missed)
    data["picture"] = [{"frame": frame, "white": white} for frame, white in picture.rows]
    return Comparison(numbers, missed, text, data, picture)
