"""Race detection against a model: random little programs, every pair of accesses judged, under several schedules.

The model looks at all pairs of all threads, whatever their order; the runtime sees one order. They must agree always.
"""

import ctypes
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from softmetal import runtime
from softmetal.frontend import toolchain
from softmetal.runtime.launch import Bound, launch

HERE = Path(__file__).parent
READ, WRITE, ATOMIC, LOAD = "read", "write", "atomic", "atomic load"
HARMLESS = {frozenset(pair) for pair in ((READ,), (ATOMIC,), (LOAD,), (READ, LOAD), (ATOMIC, LOAD))}  # together
# op -> (what, bytes)
OPS = {1: (READ, 1), 2: (WRITE, 1), 3: (READ, 2), 4: (WRITE, 2), 5: (READ, 4), 6: (WRITE, 4), 7: (ATOMIC, 4)}
OPS |= {10: (READ, 16), 11: (WRITE, 16), 12: (READ, 5), 13: (WRITE, 5), 14: (LOAD, 4)}
BARRIER, SIMD_BARRIER, SHARED = 8, 9, 16
DEVICE_FLAG, SHARED_FLAG = 1, 2
GROUP, GROUPS = 64, 2


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    """The interpreter as a checked library: (path, address of its entry)."""
    runtime.load()
    path = tmp_path_factory.mktemp("races") / "interpreter.so"
    include = Path(toolchain.zig()).parent / "lib" / "include"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "clang",
        "-x",
        "c++",
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-fno-strict-aliasing",
        "-fno-omit-frame-pointer",
        *toolchain.CHECK_FLAGS,
        "-isystem",
        str(include),
        f"-I{HERE.parent / 'runtime'}",
        "-shared",
        "-nostdlib",
        str(HERE / "race_interpreter.cpp"),
        "-o",
        str(path),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    library = ctypes.CDLL(str(path))
    return str(path), ctypes.cast(library.interpret, ctypes.c_void_p).value


@dataclass(frozen=True)
class Step:
    thread: int  # in the grid
    step: int
    what: str
    shared: bool
    begin: int
    end: int


def accesses(program):
    for thread, steps in enumerate(program):
        for step, (op, place) in enumerate(steps):
            if op & 15 in OPS:
                what, size = OPS[op & 15]
                yield Step(thread, step, what, bool(op & SHARED), place, place + size)


def ordered(program, a: Step, b: Step) -> bool:
    """Is there a barrier between two accesses of one threadgroup that orders them?"""
    if a.step > b.step:
        a, b = b, a
    flag = SHARED_FLAG if a.shared else DEVICE_FLAG
    same_simd = a.thread // 32 == b.thread // 32
    for op, flags in program[a.thread][a.step + 1 : b.step]:
        if flags & flag and (op == BARRIER or (op == SIMD_BARRIER and same_simd)):
            return True
    return False


def racing(program, a: Step, b: Step) -> bool:
    if a.thread == b.thread or a.shared != b.shared or a.begin >= b.end or b.begin >= a.end:
        return False
    if frozenset((a.what, b.what)) in HARMLESS:
        return False
    if a.thread // GROUP != b.thread // GROUP:
        return not a.shared
    return not ordered(program, a, b)


def make_program(rng: random.Random):
    """A column of barriers now and then; a few busy threads, few bytes, so that about half of the programs race."""
    steps = rng.randint(2, 8)
    total = GROUP * GROUPS if rng.random() < 0.5 else GROUP
    busy = rng.sample(range(total), rng.randint(2, 5))
    if rng.random() < 0.5:  # close together: lanes of one SIMD-group
        busy = [thread % 4 + (thread // 32) * 32 for thread in busy]
    atomics, places = rng.random() < 0.3, rng.choice([4, 16, 40])
    writes, mixed = rng.choice([0.1, 0.3, 0.6]), rng.random() < 0.4
    program = [[(0, 0)] * steps for _ in range(GROUP * GROUPS)]
    for step in range(steps):
        kind = rng.random()
        if kind < 0.3:
            flags = rng.choice([0, 1, 2, 3, 3])
            for thread in program:
                thread[step] = (BARRIER, flags)
            continue
        if kind < 0.45:
            simd, flags = rng.randrange(GROUP * GROUPS // 32), rng.choice([1, 2, 3])
            for lane in range(32):
                program[simd * 32 + lane][step] = (SIMD_BARRIER, flags)
        for thread in set(busy):
            if program[thread][step][0] or rng.random() < 0.3:
                continue
            wide, op = rng.choice([(1, 1), (2, 3), (4, 5), (16, 10), (5, 12)] if mixed else [(1, 1), (2, 3), (4, 5)])
            op += rng.random() < writes
            if atomics and rng.random() < 0.5:
                op, wide = rng.choice([7, 14]), 4
            place = rng.randrange(places) if wide == 5 else rng.randrange(max(1, places // wide)) * wide
            program[thread][step] = (op | (SHARED if rng.random() < 0.5 else 0), place)
    return program


def run(interpreter, program, seed):
    """The KernelFault of one run, or None."""
    library = runtime.load()
    path, entry = interpreter
    steps, threads = len(program[0]), len(program)
    flat = [number for thread in program for step in thread for number in step]
    code = (ctypes.c_int32 * len(flat))(*flat)
    # Memory from outside the arena: the runtime gives it a guarded place for the launch.
    memory, result = (ctypes.c_uint8 * 64)(), (ctypes.c_uint32 * threads)()
    assert library.smr_tracked_blocks() >= 0
    bindings = [
        Bound(0, ctypes.addressof(code), ctypes.sizeof(code), "program", 4, True),
        Bound(1, ctypes.addressof(memory), 64, "memory"),
        Bound(2, ctypes.addressof(result), threads * 4, "result", 4),
        Bound(3, steps.to_bytes(4, "little"), 4, "steps", 4, True),
    ]
    try:
        launch(path, entry, "interpret", bindings, (threads, 1, 1), (GROUP, 1, 1), seed=seed)
    except runtime.KernelFault as fault:
        return fault
    return None


def check_program(interpreter, number: int) -> bool:
    program = make_program(random.Random(number))
    steps = list(accesses(program))
    pairs = [(a, b) for i, a in enumerate(steps) for b in steps[i + 1 :] if racing(program, a, b)]
    for seed in range(3):
        fault = run(interpreter, program, seed)
        assert (fault is None) == (not pairs), (
            f"program {number}, seed {seed}: {fault or 'no fault'}, model: {pairs[:3]}"
        )
        if fault is None:
            continue
        assert fault.kind == "race"
        lanes = {lane.threadgroup[0] * GROUP + lane.thread for lane in fault.lanes}
        assert lanes in [{a.thread, b.thread} for a, b in pairs], (
            f"program {number}, seed {seed}: {fault} is not in {pairs}"
        )
        assert fault.name == (
            "shared" if all(a.shared for a, b in pairs if {a.thread, b.thread} == lanes) else fault.name
        )
    return bool(pairs)


def test_agrees_with_the_model(interpreter):
    verdicts = [check_program(interpreter, number) for number in range(400)]
    assert 0.25 < sum(verdicts) / len(verdicts) < 0.75  # the generator makes both kinds


@pytest.mark.full
def test_agrees_with_the_model_at_length(interpreter):
    for number in range(400, 10_000):
        check_program(interpreter, number)


def test_many_readers_then_a_writer(interpreter):
    """All lanes read a byte; then one of them writes it without a barrier: that conflicts with the others' reads."""
    for writer in (0, 5, 31, 32, 63):
        program = [[(1, 0), (0, 0)] for _ in range(GROUP)]
        program[writer][1] = (2, 0)
        for seed in range(4):
            fault = run(interpreter, program, seed)
            assert fault is not None and fault.kind == "race"
            assert writer in {lane.thread for lane in fault.lanes}
