"""Files that are no safetensors file, or half of one: one sentence each, with the value, before anything is read."""
import json

import pytest
import torch
from model_files import E4M3, part, random, write


@pytest.fixture
def module(comfy_api):
    return part("header")


def raw(folder, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def one(**changes):
    return {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}


def test_a_good_file(module, tmp_path):
    tensors = {"w": random(4, 6).to(E4M3), "b": random(4).bfloat16(), "empty": torch.zeros(0, 3), "n": torch.tensor(7)}
    path = write(tmp_path, tensors, {"who": "me"})
    header = module.read(str(path))
    assert header.metadata == {"who": "me"} and header.size == path.stat().st_size
    assert {name: (entry.dtype, entry.shape) for name, entry in header.entries.items()} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()
    }
    mapped = part("mapped").Mapped(header)
    for name, tensor in tensors.items():
        got = mapped.tensor(name)
        assert got.dtype is tensor.dtype and torch.equal(got.float(), tensor.float())


def test_tensors_are_views_that_never_reach_the_file(module, tmp_path):
    path = write(tmp_path, {"w": random(4, 6)})
    before = path.read_bytes()
    mapped = part("mapped").Mapped(module.read(str(path)))
    mapped.tensor("w").zero_()
    assert path.read_bytes() == before
    assert mapped.tensor("w").data_ptr() == mapped.tensor("w").data_ptr()


def test_a_tensor_that_is_not_aligned(module, tmp_path):
    """The format allows it; torch's views don't."""
    path = raw(tmp_path, {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                          "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}},
               b"\x07" + torch.tensor([1.5, -2.5]).numpy().tobytes())  # fmt: skip
    mapped = part("mapped").Mapped(module.read(str(path)))
    assert mapped.tensor("w").tolist() == [1.5, -2.5]


@pytest.mark.parametrize("content, says", [
    (b"", "model.safetensors is no safetensors file: it holds 0 bytes"),
    (b"\x01\x02", "it holds 2 bytes"),
    (b"PK\x03\x04" + b"\x00" * 400, "as a zip does: a .pt, .ckpt or .bin file by another name"),
    (b"GGUF" + b"\x03\x00\x00\x00" * 20, "this is GGUF"),
    (b"<!doctype html>" * 20, "a web page or a pointer was saved instead of the model"),
    (b"version https://git-lfs.github.com/spec/v1\n", "it starts with b'version '"),
])  # fmt: skip
def test_no_safetensors_file(module, tmp_path, content, says):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(module.ModelFileError) as caught:
        module.read(str(path))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("header, data, says", [
    (one(dtype=["F32"]), bytes(24), "no tensor"),
    (one(dtype={"F32": 1}), bytes(24), "no tensor"),
    (one(dtype=None), bytes(24), "no tensor"),
    (one(shape=[True]), bytes(24), "no tensor"),
    (one(shape="23"), bytes(24), "no tensor"),
    (one(shape=[2, 3.0]), bytes(24), "no tensor"),
    (one(shape=[0, 10**30], data_offsets=[0, 0]), b"", "no tensor"),
    (one(shape=[0, 2**62, 4], data_offsets=[0, 0]), b"", "no tensor"),
    (one(shape=[1] * 65, data_offsets=[0, 4]), bytes(4), "no tensor"),
    (one(data_offsets=[False, True]), bytes(1), "no tensor"),
    (one(data_offsets=[0, 10**40]), bytes(24), "no tensor"),
    (b'{"w": ' + b"[" * 200_000, b"", "its header is no JSON (it is nested too deeply)"),
    (b"{" + b" " * 20, b"", "its header is no JSON"),
    (b'{"w": ', b"", "its header is no JSON"),
    (one(dtype="F7"), b"\0" * 24, "holds w in the format 'F7'"),
    (one(shape=[2, 4]), b"\0" * 24, "w is float32 of shape (2, 4) in 24 bytes"),
    (one(shape=[2, -3]), b"\0" * 24, "no tensor"),
    (one(data_offsets=[0]), b"\0" * 24, "no tensor"),
    (one(data_offsets=[24, 0]), b"\0" * 24, "contradicts itself"),
    ({"w": 3}, b"", "its header says 3 of w: no tensor"),
    (one(), b"\0" * 20, "is cut off: w ends at byte"),
    (one(), b"\0" * 30, "its tensors end at byte"),
    ({**one(), "v": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, b"\0" * 24, "v starts at byte"),
    ({**one(), "v": {"dtype": "F32", "shape": [1], "data_offsets": [28, 32]}}, b"\0" * 32, "v starts at byte"),
])  # fmt: skip
def test_a_file_that_contradicts_itself(module, tmp_path, header, data, says):
    with pytest.raises(module.ModelFileError) as caught:
        module.read(str(raw(tmp_path, header, data)))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_every_cut_of_a_file_is_noticed(module, tmp_path):
    path = write(tmp_path, {"w": random(4, 6).to(E4M3), "b": random(4)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(module.ModelFileError, match="is cut off|is no safetensors file"):
            module.read(str(path))
    path.write_bytes(whole)
    assert module.read(str(path)).size == len(whole)


def test_a_file_that_is_gone(module, tmp_path):
    with pytest.raises(module.ModelFileError, match="gone.safetensors can't be read: No such file"):
        module.read(str(tmp_path / "gone.safetensors"))


def test_a_file_that_is_cut_after_its_header_was_read(module, tmp_path):
    path = write(tmp_path, {"w": random(40, 60)})
    header = module.read(str(path))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"^model.safetensors can't be read: ") as caught:
        part("mapped").Mapped(header)
    assert type(caught.value) is module.ModelFileError
    path.unlink()
    with pytest.raises(module.ModelFileError, match=r"^model.safetensors can't be read: "):
        part("mapped").Mapped(header)


def test_a_name_that_is_no_line_is_shown_escaped(module, tmp_path):
    path = raw(tmp_path, {"a\n\x1b[31mb": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}, bytes(9))
    with pytest.raises(module.ModelFileError) as caught:
        module.read(str(path))
    assert r"a\n\x1b[31mb is float32" in str(caught.value) and str(caught.value).isprintable()
