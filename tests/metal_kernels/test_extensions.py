"""Extensions: what stands on the kernels in another program is installed after them and uninstalled before them."""

import pytest


class Extension:
    """Writes down what is asked of it, and whether the kernel's op is registered at that moment."""

    def __init__(self, name, log, registered=lambda: None):
        self.name, self.log, self.registered = name, log, registered

    def install(self):
        self.log.append((self.name, "in", self.registered()))

    def uninstall(self):
        self.log.append((self.name, "out", self.registered()))


@pytest.fixture
def made(install, make_kernel):
    """(an Installation with one kernel, installed; a list; a maker of extensions that write to it)."""
    installation, log = install(make_kernel(name="pad")), []
    return installation, log, lambda name: Extension(name, log, lambda: installation.switches["pad"].registered)


def test_they_come_after_the_kernels_and_go_before_them(made):
    installation, log, extension = made
    installation.uninstall()
    for name in "ab":
        installation.add_extension(extension(name))
    assert log == []
    installation.install()
    assert log == [("a", "in", True), ("b", "in", True)]
    log.clear()
    installation.uninstall()
    assert log == [("b", "out", True), ("a", "out", True)]
    log.clear()
    installation.install()
    assert log == [("a", "in", True), ("b", "in", True)], "install() brings them back"


def test_once_is_enough(made):
    installation, log, extension = made
    one = extension("a")
    for _ in range(2):
        installation.add_extension(one)
    assert log == [("a", "in", True)], "at once, where the kernels are installed"
    installation.install()
    assert len(log) == 1
    for _ in range(2):
        installation.uninstall()
    assert log[1:] == [("a", "out", True)]


def test_a_mode_is_no_uninstall(made):
    installation, log, extension = made
    installation.add_extension(extension("a"))
    installation.set_mode("off")
    installation.set_mode("auto")
    assert log == [("a", "in", True)]


def test_one_that_is_removed(made):
    installation, log, extension = made
    one, other = extension("a"), extension("b")
    installation.add_extension(one)
    for _ in range(2):
        installation.remove_extension(one)
        installation.remove_extension(other)
    assert log == [("a", "in", True), ("a", "out", True)]
    installation.uninstall()
    installation.install()
    assert len(log) == 2


def test_one_that_raises_stops_nobody(made, caplog):
    installation, log, extension = made

    class Broken:
        def install(self):
            raise LookupError("no such program")

        uninstall = install

    installation.add_extension(extension("a"))
    installation.add_extension(Broken())
    installation.add_extension(extension("b"))
    installation.uninstall()
    assert [name for name, _, _ in log] == ["a", "b", "b", "a"]
    assert not installation.installed and not installation.switches["pad"].registered
    assert "the extension Broken can't be installed" in caplog.text and "no such program" in caplog.text
    assert "the extension Broken can't be uninstalled" in caplog.text
    installation.install()
    assert [name for name, _, _ in log[4:]] == ["a", "b"] and installation.switches["pad"].registered


def test_where_nothing_can_run_they_are_installed_all_the_same(core, make_kernel):
    """Each knows for itself what it can do without the kernels."""
    import dataclasses

    environment = dataclasses.replace(core.environment.detect(), obstacle="This is Linux; it has no MPS.")
    installation, log = core.installation.Installation([make_kernel()], environment=environment), []
    installation.add_extension(Extension("a", log))
    installation.install()
    installation.uninstall()
    assert log == [("a", "in", None), ("a", "out", None)]


def test_the_public_names(core):
    log = []
    one = Extension("a", log)
    core.face.uninstall()
    core.face.add_extension(one)
    try:
        core.face.install()
        core.face.uninstall()
    finally:
        core.face.remove_extension(one)
    core.face.install()
    core.face.uninstall()
    assert log == [("a", "in", None), ("a", "out", None)]
