"""The conformance table of all kernels: cases as data, importable without pytest and without a device.

    from conformance.table import CASES
    from conformance import library
    worst = library.check(case, device)         # of the tolerance; raises library.Mismatch
    arguments = library.OPERATIONS[case.op].make(case)

`library` is metal_kernels.conformance, which has the operations, their references and tolerances, and the compact part
of the table that ships. `case.size` says where a case belongs: "quick", "full" (slow on the software device), "device"
(the real size of a hot shape: for a GPU).
"""

import importlib

from pack import load

metal_kernels = load().metal_kernels
library = importlib.import_module(f"{metal_kernels.__name__}.conformance")
