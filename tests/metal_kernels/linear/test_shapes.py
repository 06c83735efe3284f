"""The table of public models' layers."""


def test_the_table(table):
    """96 distinct shapes, each with a model's layer beside it, from a small router to a vocabulary."""
    layers = table["layers"]
    shapes = {(entry["N"], entry["K"]) for entry in layers}
    assert len(layers) == len(shapes) == 96
    assert all(set(entry) == {"N", "K", "model", "layer"} for entry in layers)
    assert {entry["model"] for entry in layers} == set(table["sources"])
    assert {n for n, _ in shapes} >= {32, 151936, 262208}
