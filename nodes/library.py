"""The kernel library as the nodes see it: imported and installed once, without ever raising.

`metal_kernels` is the module, or None; `problem` is the sentence that says what went wrong, or None.
"""
import logging

log = logging.getLogger("metal_kernels")

problem = None

try:
    from .. import metal_kernels
except Exception as error:
    metal_kernels = None
    problem = f"the kernel library can't be imported: {type(error).__name__}: {error}"
    log.warning("Metal Kernels: %s", problem, exc_info=True)


def install():
    """Put the kernels in place. What goes wrong is logged and kept in `problem`; torch then stays as it was."""
    global problem
    if metal_kernels is None:
        return
    try:
        metal_kernels.install()
        problem = None
    except Exception as error:
        problem = f"the kernels can't be installed: {type(error).__name__}: {error}"
        log.warning("Metal Kernels: %s", problem, exc_info=True)
