"""What a node's input was given. A link may carry anything, numpy's numbers among it: each function here gives the
value as the node means it, or raises `Unfit`.
"""
import numbers
import operator

import numpy

LONGEST = 40  # characters of a value in a sentence


class Unfit(ValueError):
    """One sentence for the person at the graph: which input, its value, what to give.

    ComfyUI shows an exception's type with its module, which for a pack is a path of the user's disk. Whatever is
    derived from this shows the pack's name instead.
    """

    __module__ = "metal_kernels"

    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        cls.__module__ = Unfit.__module__


def number(name, thing, what):
    """`thing` as a float. what: what to give instead of anything that is no number, or too large to be one."""
    if isinstance(thing, numbers.Real) and not isinstance(thing, bool):
        try:
            return float(thing)
        except OverflowError:
            pass
    raise Unfit(f"{name} is {described(thing)}: {what}")


def whole(name, thing, least, what):
    """`thing` as an int of at least `least`."""
    try:
        found = None if isinstance(thing, (bool, numpy.bool_)) else operator.index(thing)
    except TypeError:
        found = None
    if found is None:
        raise Unfit(f"{name} is {described(thing)}: {what}")
    if found < least:
        raise Unfit(f"{name} is {shortened(found)}: {what}")
    return found


def flag(name, thing):
    """`thing` as a bool; a number is 0 or not."""
    if isinstance(thing, (bool, numpy.bool_, numbers.Integral)):
        return bool(thing)
    raise Unfit(f"{name} is {described(thing)}: give true or false.")


def choice(name, thing, choices):
    """`thing`, which is one of these texts."""
    if isinstance(thing, str) and thing in choices:
        return thing
    raise Unfit(f"{name} is {described(thing).removeprefix('the str ')}: choose one of {', '.join(choices)}.")


def described(thing):
    """A value in a sentence: `the str 'no'`, `nothing (None)`, `of type dict`."""
    if thing is None:
        return "nothing (None)"
    if isinstance(thing, (bool, int, float, str)):
        return f"the {type(thing).__name__} {shortened(thing)}"
    return f"of type {type(thing).__name__}"


def shortened(thing):
    """`repr`, cut."""
    try:
        text = repr(thing)
    except ValueError:  # Python writes no int of more than 4300 digits
        return "of thousands of digits"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
