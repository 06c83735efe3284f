"""Curves of bounded length that lose no peak."""
import pytest


@pytest.fixture
def series(memory):
    return memory.series.Series(limit=8)


def fill(memory, series, values):
    for second, value in enumerate(values):
        series.add(float(second), memory.source.Reading(value, None, 2 * value, None, None))


def test_short_prompts_keep_every_reading(memory, series):
    fill(memory, series, range(10))
    assert [row[:2] for row in series.rows] == [[float(i), i] for i in range(10)] and series.width == 1


@pytest.mark.parametrize("count", [17, 18, 33, 100, 1000])
@pytest.mark.parametrize("at", [0, 7, 16, -1])
def test_a_peak_survives_any_length(memory, series, count, at):
    values = [1] * count
    values[at] = 99
    fill(memory, series, values)
    assert len(series.rows) <= 2 * 8
    assert max(row[1] for row in series.rows) == 99 and max(row[3] for row in series.rows) == 198
    seconds = [row[0] for row in series.rows]
    assert seconds == sorted(seconds) and seconds[0] == 0.0


def test_what_is_not_available_stays_so(memory, series):
    fill(memory, series, range(50))
    assert {row[2] for row in series.rows} == {row[4] for row in series.rows} == {None}
