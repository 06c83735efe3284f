"""Functions that a CPU build of torch lacks and torch.mps calls."""


def compile_shader(source: str):
    """torch.mps.compile_shader's inner part: the library compiled from MSL source. SyntaxError if it does not compile."""
    from softmetal import shader

    return shader.compile_shader(source)
