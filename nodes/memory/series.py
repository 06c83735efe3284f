"""Memory over time in bounded space: however long a prompt runs, its curves are a few hundred points."""

LIMIT = 512


class Series:
    """Rows [seconds, current, reserved, driver, outside]. When they get many, neighbours are merged in pairs: each
    number keeps the larger of the two, so that a peak never goes missing; the seconds are those of the earlier one."""

    def __init__(self, limit=LIMIT):
        self.limit = limit
        self.rows = []
        self.width = 1  # readings in a full row
        self._filled = 0

    def add(self, seconds, reading):
        row = [seconds, reading.current, reading.reserved, reading.driver, reading.outside]
        if self.rows and self._filled < self.width:
            self.rows[-1] = _merge(self.rows[-1], row)
        else:
            self.rows.append(row)
            self._filled = 0
        self._filled += 1
        if len(self.rows) > 2 * self.limit:
            last = self.rows[-1:] if len(self.rows) % 2 else []
            self.rows = [_merge(*pair) for pair in zip(self.rows[::2], self.rows[1::2], strict=False)] + last
            self.width *= 2


def _merge(earlier, later):
    return [earlier[0], *(None if a is None or b is None else max(a, b)
                          for a, b in zip(earlier[1:], later[1:], strict=True))]
