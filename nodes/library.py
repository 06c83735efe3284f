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


def install(*extensions):
    """Put the kernels in place, and the extensions, modules with `install` and `uninstall`, which from then on come and
    go with them. What goes wrong is logged and kept in `problem`; torch then stays as it was.
    """
    global problem
    if metal_kernels is not None:
        try:
            metal_kernels.install()
            for extension in extensions:
                metal_kernels.add_extension(extension)
            problem = None
            return
        except Exception as error:
            problem = f"the kernels can't be installed: {type(error).__name__}: {error}"
            log.warning("Metal Kernels: %s", problem, exc_info=True)
    for extension in extensions:  # what needs no kernels works without them; the others find that there are none
        extension.install()
