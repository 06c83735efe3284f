"""README's table is the one that is computed, and its verdicts are what their words say."""
import mac_memory
import pytest
from mac_memory import GIB, recommended, verdict
from pack import ROOT


def test_readme_has_this_table():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.split(mac_memory.BEGIN)[1].split(mac_memory.END)[0].strip() == mac_memory.table()


@pytest.mark.parametrize("memory, most", [(16, 32 * GIB // 3), (24, 16 * GIB), (32, 64 * GIB // 3), (64, 48 * GIB)])
def test_what_metal_recommends(memory, most):
    """The software device's rule."""
    from softmetal.device.chips import Chip

    assert recommended(memory * GIB) == most == Chip("a Mac", 10, memory * GIB).recommended_max_memory


@pytest.mark.parametrize("peak, word", [(10, "fits"), (11, "swaps"), (16, "swaps"), (16.5, "does not fit")])
def test_the_words(peak, word):
    assert verdict(peak * GIB, 16 * GIB) == word
