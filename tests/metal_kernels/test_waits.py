"""Stock kernels that wait for the GPU are waited for without Python's lock: same results, same errors."""

import threading
import time

import pytest
import torch

TURNS = 10  # where stock keeps the lock there are two or three, however long it waits

# Each op whose stock kernel waits: what calls it, of a tensor x of 4 floats on the device. By the op that is patched.
CALLS = {
    "_local_scalar_dense": (lambda x, mask: x[1].item(), lambda x, mask: bool(mask[1])),
    "fill_.Tensor": (lambda x, mask: x.clone().fill_(x[2]),),
    "equal": (lambda x, mask: torch.equal(x, x.clone()), lambda x, mask: torch.equal(mask, ~mask)),
    "masked_select": (lambda x, mask: x.masked_select(mask),),
    "index.Tensor": (lambda x, mask: x[mask], lambda x, mask: x[torch.tensor([2, 0])]),
    "_index_put_impl_": (lambda x, mask: x.clone().index_put_((mask,), x[3]),),
    "histc": (lambda x, mask: torch.histc(x, 4, 0, 8),),
    "_grouped_mm": (
        lambda x, mask: torch._grouped_mm(
            x.to(torch.bfloat16).expand(8, 4).contiguous().repeat(1, 4),
            x.to(torch.bfloat16).expand(16, 4).contiguous().repeat(2, 1, 4),
            offs=torch.tensor([3, 8], dtype=torch.int32).to(x.device),
        ),
    ),
}
CASES = [pytest.param(op, call, id=f"{op}-{i}") for op, calls in CALLS.items() for i, call in enumerate(calls)]

# Of the other ops that a kernel patches stock queues its work and returns. copy_: see test_awake.py.
NEVER = {
    "constant_pad_nd", "_softmax", "_softmax.out", "_log_softmax", "_log_softmax.out", "_softmax_backward_data",
    "_softmax_backward_data.out", "_log_softmax_backward_data", "_log_softmax_backward_data.out", "linear",
    "linear_backward", "topk", "cat", "index_select", "gather", "where.self", "flip", "roll", "repeat", "zero_",
    "fill_.Scalar", "_scaled_mm", "_scaled_mm.out", "_scaled_mm_v2",
}  # fmt: skip


@pytest.fixture
def inputs(mps):
    """x and a mask on the device, and the same two on the CPU."""
    x, mask = torch.tensor([1.5, 2.5, -3.5, 4.5]), torch.tensor([True, True, False, True])
    return (x.to(mps), mask.to(mps)), (x, mask)


@pytest.fixture
def idle(install, make_kernel):
    """idle(op): `op` is registered, and its kernel takes nothing."""

    def build(op):
        installation = install(make_kernel(op, supports=lambda *args, **kwargs: False))
        assert op in installation.patcher.overrides
        return installation

    return build


def test_of_every_patched_op_it_is_known_whether_stock_waits(core):
    ops = {op for kernel in core.face.KERNELS for op in kernel.ops} - {"copy_"}
    assert set(core.waits.WAITS) == set(CALLS) and not NEVER & set(CALLS)
    assert ops == NEVER | set(CALLS)


@pytest.mark.parametrize("op, call", CASES)
def test_other_threads_go_on_while_stock_waits(idle, inputs, op, call):
    """The device has work for a while; meanwhile this thread gets its turns. On a busy machine the while is longer."""
    idle(op)
    (x, mask), _ = inputs
    call(x, mask)  # what the first call sets up is not what is timed
    for seconds in (0.25, 1.0, 4.0):
        took, turns = turns_beside(lambda: call(x, mask), seconds)
        assert took >= seconds, "nothing waited: the case shows nothing"
        if turns >= TURNS:
            break
    assert turns >= TURNS, f"{turns} turns in {took:.2f} s"


def turns_beside(call, seconds):
    """(seconds that `call` took in another thread while the device was busy for `seconds`, turns that this one got)."""
    from softmetal import counters

    done, took = threading.Event(), []

    def work():
        begin = time.perf_counter()
        counters.keep_busy(seconds)
        call()
        took.append(time.perf_counter() - begin)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    return took[0], turns


@pytest.mark.parametrize("op, call", CASES)
def test_results_are_stocks(idle, inputs, op, call):
    stock, expected = call(*inputs[0]), call(*inputs[1])
    idle(op)
    actual = call(*inputs[0])
    assert same(actual, stock) and same(actual, expected)


def same(actual, expected):
    """Also in type, dtype and sign."""
    if not isinstance(expected, torch.Tensor):
        return repr(actual) == repr(expected) and type(actual) is type(expected)
    return actual.dtype == expected.dtype and torch.equal(actual.cpu(), expected.cpu())


DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex32,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_items_value_and_type_are_the_cpus(idle, mps, dtype):
    """Of every dtype, wherever the element lies; stock may be asked or not."""
    values = torch.tensor([0, 1, 3, 250, 65504]).to(torch.int64).to(torch.float32).to(dtype)
    extremes = torch.tensor([-0.0, float("inf"), float("nan"), 1e-8, -1.1]).to(dtype)
    elements = [*values, *(extremes if dtype.is_floating_point or dtype.is_complex else ()), values[3:4].view(1, 1, 1)]
    idle("_local_scalar_dense")
    for element in elements:
        assert same(element.to(mps).item(), element.item()), element
    strided = torch.stack([values, values]).to(mps).t()[3, 1:]
    assert same(strided.item(), values[3].item())


@pytest.mark.parametrize("sizes", [(2,), (0,), (1, 3)])
def test_an_item_of_not_one_element_raises_what_stock_raises(idle, mps, sizes):
    x = torch.ones(sizes).to(mps)

    def error():
        with pytest.raises(RuntimeError) as caught:
            x.item()
        return str(caught.value)

    stock = error()
    idle("_local_scalar_dense")
    assert error() == stock


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_item_that_stock_has_not_is_refused_in_its_words(idle, mps, dtype):
    """Reading its byte on the CPU would make a value of what stock refuses."""
    import softmetal

    x = torch.ones(1).to(dtype).view(torch.uint8).to(mps).view(dtype)
    with softmetal.profile(faults="2.13"):
        with pytest.raises((RuntimeError, TypeError)) as stock:
            x.item()
        idle("_local_scalar_dense")
        with pytest.raises(type(stock.value)) as ours:
            x.item()
        assert str(ours.value) == str(stock.value)


def test_wrong_arguments_raise_what_stock_raises(install, make_kernel, mps):
    x = torch.ones(3).to(mps)
    wrong = {
        "masked_select": lambda: x.masked_select(x),
        "index.Tensor": lambda: x[x],
        "_index_put_impl_": lambda: x.index_put_((x > 0, x > 0), x),
        "fill_.Tensor": lambda: x.fill_(x),
        "histc": lambda: torch.histc(x, -1),
    }

    def errors():
        for call in wrong.values():
            with pytest.raises((RuntimeError, IndexError)) as caught:
                call()
            yield type(caught.value), str(caught.value)

    stock = list(errors())
    install(*(make_kernel(op, supports=lambda *args, **kwargs: False) for op in wrong))
    assert list(errors()) == stock


def test_an_item_is_seen_by_nobody_else(idle, mps):
    """No mode of the caller's sees how the element is read; no gradient is recorded; nor does inference mind."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = (torch.tensor([2.0], requires_grad=True).to(mps) * 3)[0]
    idle("_local_scalar_dense")
    with Functions():
        assert x.item() == 6.0
    with Ops():
        assert x.item() == 6.0
    assert seen == ["item", "aten._local_scalar_dense.default"]
    with torch.inference_mode():
        assert x.item() == 6.0 and (x * 2).item() == 12.0
    assert (2 * x).grad_fn is not None and x.item() == 6.0
    assert torch.tensor([1 + 2j]).to(mps).conj().item() == 1 - 2j
    assert torch.tensor([1 + 2j]).to(mps).conj().imag.item() == -2
    torch.set_default_device(mps)
    try:
        assert x.item() == 6.0
    finally:
        torch.set_default_device(None)
