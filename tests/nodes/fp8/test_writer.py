"""Writing a model file: safetensors reads it, the same tensors make the same bytes, and a failure leaves nothing."""
import errno

import pytest
import safetensors
import torch
from model_files import E4M3, part, random

TENSORS = {"b.weight": random(5, 7).to(E4M3), "b.weight_scale": torch.tensor(0.5), "a.weight": random(3, 4).bfloat16(),
           "b.comfy_quant": torch.tensor([123, 125], dtype=torch.uint8), "none": torch.zeros(0)}  # fmt: skip


@pytest.fixture
def writer(comfy_api):
    return part("writer")


def shapes(tensors):
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def write(writer, path, tensors, order=None):
    with writer.Writer(str(path), shapes(tensors), {"format": "pt"}) as file:
        for name in order or tensors:
            file.put(name, tensors[name])
        return file.size


def test_safetensors_reads_it(writer, tmp_path):
    path = tmp_path / "new" / "model.safetensors"
    size = write(writer, path, TENSORS)
    assert path.stat().st_size == size and [file.name for file in path.parent.iterdir()] == [path.name]
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"} and set(file.keys()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            got = file.get_tensor(name)
            assert got.dtype is tensor.dtype and torch.equal(got.float(), tensor.float())
    header = part("header").read(str(path))
    for entry in header.entries.values():
        assert entry.begin % entry.dtype.itemsize == 0


def test_the_order_makes_no_difference(writer, tmp_path):
    write(writer, tmp_path / "1", TENSORS)
    backwards = dict(reversed(TENSORS.items()))
    write(writer, tmp_path / "2", backwards)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_tensors_that_are_not_contiguous(writer, tmp_path):
    turned = {"t": random(6, 4).t()}
    write(writer, tmp_path / "1", turned)
    with safetensors.safe_open(tmp_path / "1", "pt") as file:
        assert torch.equal(file.get_tensor("t"), turned["t"])


def test_a_failure_leaves_nothing_and_keeps_what_was_there(writer, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match="2 tensors were not written, a.weight among them"):
        write(writer, path, TENSORS, [name for name in TENSORS if name not in ("a.weight", "none")])
    with pytest.raises(ZeroDivisionError), writer.Writer(str(path), shapes(TENSORS)):
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="a.weight is torch.float32 .3, 4., not torch.bfloat16 .3, 4. as announced"):
        with writer.Writer(str(path), shapes(TENSORS)) as file:
            file.put("a.weight", TENSORS["a.weight"].float())
    assert path.read_bytes() == b"before" and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_disk_that_is_too_small(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100}))
    with pytest.raises(ValueError, match="model takes .* and its disk has 0.1 KiB free."):
        write(writer, tmp_path / "model", TENSORS)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up(writer, tmp_path):
    """While the file grows: a sentence, and neither a file nor a folder is left."""
    path = tmp_path / "new" / "folder" / "model"
    with pytest.raises(ValueError, match="model can't be written: No space left on device[.]"):
        with writer.Writer(str(path), shapes(TENSORS)) as file:
            file.put("b.weight", TENSORS["b.weight"])
            file._file = Full(file._file)
            file.put("a.weight", TENSORS["a.weight"])
    assert list(tmp_path.iterdir()) == []


class Full:
    """A file on a full disk: even its end can't be written."""

    def __init__(self, file):
        self.file = file

    def seek(self, place):
        pass

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self):
        self.file.close()
        self.write(b"")


@pytest.mark.parametrize("free", [100, 10**12])
def test_no_folder_is_left_by_what_was_not_written(writer, tmp_path, monkeypatch, free):
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": free}))
    (tmp_path / "there").mkdir()
    for folder in "there", "new/folder":
        with pytest.raises((ValueError, ZeroDivisionError)):
            with writer.Writer(str(tmp_path / folder / "model"), shapes(TENSORS)):
                raise ZeroDivisionError
    assert [each.name for each in tmp_path.rglob("*")] == ["there"]


def test_a_place_where_nothing_can_be_written(writer, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place, said in (("file/model", "Not a directory|File exists"), ("x" * 300, "File name too long")):
        with pytest.raises(ValueError, match=f"can't be written: ({said})[.]"):
            write(writer, tmp_path / place, TENSORS)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_that_stands_as_a_folder(writer, tmp_path):
    (tmp_path / "model" / "in the way").mkdir(parents=True)
    with pytest.raises(ValueError, match="model can't be written: "):
        write(writer, tmp_path / "model", TENSORS)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["in the way", "model"]
