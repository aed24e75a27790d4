"""Names to classes: one, or an error that says what to do."""

from __future__ import annotations

import sys

import pytest

from ferrule import PluginError, hookimpl
from ferrule.kinds import KINDS, AuxLoss
from ferrule.plugins import Registry
from ferrule.plugins import registry as registry_module
from ferrule.plugins.compat import nearest

LOSS = """
import ferrule
class Echo(ferrule.AuxLoss, name="echo"):
    def weight(self, row, ctx): return 1.0
"""


def losses(module: str = "fake_losses", name: str = "echo", attribute: str = "Echo") -> dict:
    return {"ferrule.losses": {name: f"{module}:{attribute}"}}


def registry(site) -> Registry:
    return Registry.discover([str(site.path)])


def test_a_name_resolves_to_its_class_whatever_its_case_and_separators(site):
    site.add("fake-losses", points=losses(name="my_echo"), modules={"fake_losses": LOSS})
    found = registry(site)
    classes = {
        found.resolve("loss", name)
        for name in ("my_echo", "my-echo", "My.Echo", "my_echo@fake-losses", "my_echo@Fake_Losses")
    }
    assert [cls.__name__ for cls in classes] == ["Echo"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpro", "grpo"),
        ("prop", "prpo"),
        ("grp", "grpo"),
        ("rlo", "rloo"),
        ("ehco", "echo"),
        ("reinforce_plus", "reinforce"),
        ("xgrpo", "grpo"),
    ],
)
def test_of_several_near_names_the_one_with_the_fewest_slips_is_suggested(written, meant):
    names = ["prpo", "grpo", "rloo", "opo", "echo", "reinforce", "reinforce_plus_plus_baseline"]
    assert nearest(written, names) == f"; did you mean {meant!r}?"


def test_discovery_imports_nothing_and_a_resolution_only_what_it_names(site):
    site.add("fake-losses", points=losses(), modules={"fake_losses": LOSS})
    site.add("fake-others", points=losses("fake_others", "other"), modules={"fake_others": LOSS})
    found = registry(site)
    assert {c.name for c in found.candidates("loss")} == {"echo", "other"}
    assert not {"fake_losses", "fake_others"} & set(sys.modules)
    found.resolve("loss", "echo")
    assert "fake_others" not in sys.modules


def test_two_distributions_with_one_name_are_an_error_that_names_both_whatever_the_order(site):
    site.add("fake-losses", points=losses(), modules={"fake_losses": LOSS})
    site.add("rival-losses", "2.1", points=losses("rival_losses"), modules={"rival_losses": LOSS})
    found = registry(site)
    with pytest.raises(PluginError) as raised:
        found.resolve("loss", "echo")
    for part in ("fake-losses 1.0", "rival-losses 2.1", "'echo@fake-losses'", "'echo@rival-losses'"):
        assert part in str(raised.value)
    assert not {"fake_losses", "rival_losses"} & set(sys.modules)
    backwards = Registry(reversed(found.candidates()))
    with pytest.raises(PluginError, match="more than one distribution"):
        backwards.resolve("loss", "echo")
    assert found.resolve("loss", "echo@rival-losses").__module__ == "rival_losses"


def test_a_third_unrelated_distribution_changes_nothing(site):
    site.add("fake-losses", points=losses(), modules={"fake_losses": LOSS})
    before = registry(site).resolve("loss", "echo")
    site.add("aaa-unrelated", points=losses("unrelated", "unrelated"), modules={"unrelated": LOSS})
    site.add("aaa-other-kind", points={"ferrule.advantages": {"echo": "unrelated:Echo"}})
    assert registry(site).resolve("loss", "echo") is before


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("gpro", "did you mean 'grpo'"),
        ("reinforce-plusplus", "did you mean 'reinforce_plus_plus'"),
        ("zzz", "known: grpo, reinforce_plus_plus"),
        ("grpo@elsewhere", "offered by fake-advantages"),
        ("echo", "a loss is called that"),
        ("acme.stuff.Thing", "acme.stuff:Thing"),
    ],
)
def test_an_unknown_name_says_what_is_near(site, written, said):
    points = {"ferrule.advantages": {"grpo": "x:G", "reinforce_plus_plus": "x:R"}, **losses()}
    site.add("fake-advantages", points=points)
    with pytest.raises(PluginError) as raised:
        registry(site).resolve("advantage", written)
    assert said in str(raised.value).replace("reinforce-plus-plus", "reinforce_plus_plus")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def broken(:", "SyntaxError"),
        ("Other = 1", "no 'Echo' in it"),
        ("Echo = 3", "is not a class but int"),
        ("class Echo: pass", "does not extend ferrule.AuxLoss"),
        (
            "import ferrule\nclass Echo(ferrule.Advantage):\n  def estimate(self, b): return b.centred",
            "it is of the kind 'advantage'",
        ),
        ("import ferrule\nclass Echo(ferrule.AuxLoss): pass", "does not define weight"),
        (
            "import ferrule\nclass Echo(ferrule.AuxLoss):\n  api = 7\n  def weight(self, r, c): return 1.0",
            "version 7 of the loss contract",
        ),
        (
            "import ferrule\nclass Echo(ferrule.AuxLoss):\n  class Config: pass\n  def weight(self, r, c): return 1.0",
            "must be an attrs class",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_with_its_distribution_and_breaks_no_other(site, source, said):
    site.add("broken-losses", "4.2", points=losses("broken_losses"), modules={"broken_losses": source})
    site.add("fake-losses", points=losses(name="sound"), modules={"fake_losses": LOSS})
    found = registry(site)
    with pytest.raises(PluginError) as raised:
        found.resolve("loss", "echo")
    assert said in str(raised.value)
    assert "broken-losses 4.2" in str(raised.value)
    assert found.resolve("loss", "sound").__name__ == "Echo"


def test_an_interrupt_while_a_plugin_loads_is_not_swallowed(site):
    site.add("broken-losses", points=losses("broken_losses"), modules={"broken_losses": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        registry(site).resolve("loss", "echo")


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ("ferrule>=0.1,<0.2", True),
        ("Ferrule", True),
        ("ferrule>=9", False),
        ("ferrule<0.1", False),
        ("ferrule>=9; python_version < '3'", True),
        ("ferrule>=9; extra == 'new'", True),
        ("ferrule-other>=9", True),
        ("ferrule==0.1.0.dev3", False),
        ("ferrule>=0.1.0.dev3", True),
    ],
)
def test_the_core_that_a_plugin_requires_is_checked_before_anything_of_it_runs(site, requirement, fits):
    site.add("fake-losses", "3.0", points=losses(), modules={"fake_losses": LOSS}, requires=["numpy", requirement])
    if fits:
        assert registry(site).resolve("loss", "echo").__name__ == "Echo"
        return
    with pytest.raises(PluginError, match=r"fake-losses 3\.0 needs ferrule") as raised:
        registry(site).resolve("loss", "echo")
    assert "this is ferrule 0.1.0" in str(raised.value)
    assert "fake_losses" not in sys.modules


def test_a_prerelease_of_the_next_core_is_not_the_core_that_a_plugin_asked_for(site):
    from ferrule.plugins.compat import core_mismatch

    site.add("fake-losses", points=losses(), requires=["ferrule>=0.1,<0.2"])
    (candidate,) = registry(site).candidates()
    assert core_mismatch(candidate.dist, "0.2.0.dev1")
    assert core_mismatch(candidate.dist, "0.1.9rc1") is None


def test_contracts_of_this_version_and_the_one_before_are_loaded_and_no_others(site, monkeypatch):
    import attrs

    kinds = {**KINDS, "loss": attrs.evolve(KINDS["loss"], api=3)}
    monkeypatch.setattr(registry_module, "KINDS", kinds)
    source = LOSS.replace("    def", "    api = {}\n    def")
    for api in (1, 2, 3, 4):
        site.add(
            f"fake-{api}",
            points=losses(f"fake_{api}", f"echo{api}"),
            modules={f"fake_{api}": source.replace("{}", str(api))},
        )
    found = registry(site)
    assert [found.resolve("loss", f"echo{api}").api for api in (2, 3)] == [2, 3]
    for api in (1, 4):
        with pytest.raises(PluginError, match=f"version {api} of the loss contract; this core supports 2 and 3"):
            found.resolve("loss", f"echo{api}")


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, {"echo", "other"}),
        ({"FERRULE_PLUGINS": "none"}, set()),
        ({"FERRULE_PLUGINS": "other"}, {"other"}),
        ({"FERRULE_PLUGINS": "fake_losses, zzz"}, {"echo"}),
        ({"FERRULE_DISABLE": "Echo"}, {"other"}),
        ({"FERRULE_DISABLE": "echo@fake-others"}, {"echo", "other"}),
        ({"FERRULE_PLUGINS": "echo,other", "FERRULE_DISABLE": "fake-others"}, {"echo"}),
    ],
)
def test_the_environment_switches_plugins_off(site, environ, left):
    site.add("fake-losses", points=losses())
    site.add("fake-others", points=losses("fake_others", "other"))
    found = Registry.discover([str(site.path)], environ)
    assert {c.name for c in found.candidates()} == left
    if "echo" not in left:
        variable = "FERRULE_DISABLE" if "FERRULE_DISABLE" in environ else "FERRULE_PLUGINS"
        with pytest.raises(PluginError, match=f"echo@fake-losses is switched off by {variable}"):
            found.resolve("loss", "echo")


def test_one_distribution_that_offers_a_name_twice_is_told_so(site):
    site.add("fake-losses", points={"ferrule.losses": {"echo": "fake_losses:Echo", "Echo": "fake_losses:Other"}})
    with pytest.raises(PluginError, match="offers loss 'echo' more than once"):
        registry(site).resolve("loss", "echo")


def test_a_wrapper_of_a_kind_hook_sees_every_resolution_and_nothing_else_is_let_in(site, tmp_path):
    site.add("fake-losses", points=losses(), modules={"fake_losses": LOSS})
    (tmp_path / "mine.py").write_text(LOSS)
    seen = []

    class Tracing:
        @hookimpl(wrapper=True)
        def ferrule_loss(self, ref):
            seen.append(ref.text)
            return (yield)

    class Hijack:
        @hookimpl(tryfirst=True)
        def ferrule_loss(self, ref):
            return AuxLoss

    class Misspelt:
        @hookimpl(wrapper=True)
        def ferrule_los(self, ref):
            return (yield)

    found = registry(site)
    found.register(Tracing(), "tracing")
    with pytest.raises(PluginError, match="may only wrap ferrule_loss"):
        found.register(Hijack(), "hijack")
    with pytest.raises(PluginError, match="did you mean 'ferrule_loss'"):
        found.register(Misspelt(), "misspelt")
    found.resolve("loss", "echo")
    found.resolve("loss", "mine.py:Echo", tmp_path)
    found.resolve("loss", "fake_losses:Echo")
    assert seen == ["echo", "mine.py:Echo", "fake_losses:Echo"]


def test_a_wrapper_that_answers_with_something_else_does_not_get_past_the_contract(site):
    site.add("fake-losses", points=losses(), modules={"fake_losses": LOSS})

    class Wrong:
        @hookimpl(wrapper=True)
        def ferrule_loss(self, ref):
            yield
            return dict

    found = registry(site)
    found.register(Wrong(), "wrong")
    with pytest.raises(PluginError, match=r"does not extend ferrule\.AuxLoss"):
        found.resolve("loss", "echo")


def test_the_manifest_says_what_was_loaded_and_only_that(site, tmp_path):
    import hashlib

    site.add("fake-losses", "1.5", points=losses(), modules={"fake_losses": LOSS})
    (tmp_path / "mine.py").write_text(LOSS)
    found = registry(site)
    assert found.manifest() == []
    found.resolve("loss", "echo")
    found.resolve("loss", "mine.py:Echo", tmp_path)
    named, filed = found.manifest()
    digest = hashlib.sha256(LOSS.encode()).hexdigest()
    assert named == {
        "reference": "echo",
        "kind": "loss",
        "class": "fake_losses:Echo",
        "distribution": "fake-losses",
        "version": "1.5",
        "file": str(site.path / "fake_losses.py"),
        "sha256": digest,
    }
    assert (filed["reference"], filed["distribution"], filed["sha256"]) == ("mine.py:Echo", None, digest)
    assert filed["file"] == str(tmp_path / "mine.py")


def test_the_hash_of_a_plugin_that_is_a_package_is_that_of_all_of_its_files(site):
    package = site.path / "acme_losses"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from .deep.echo import Echo\n")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "echo.py").write_text(LOSS)
    site.add("acme-losses", points=losses("acme_losses"))

    def digest() -> str:
        found = registry(site)
        found.resolve("loss", "echo")
        (line,) = found.manifest()
        return line["sha256"]

    before = digest()
    assert digest() == before
    (package / "deep" / "echo.py").write_text(LOSS + "# changed\n")
    assert digest() != before


def test_every_kind_has_its_group_and_hook(site):
    site.toy()
    found = registry(site)
    assert {c.kind for c in found.candidates()} == {*KINDS, "observer"}
    for candidate in found.candidates():
        assert issubclass(found.resolve(candidate.kind, candidate.name), found.kinds[candidate.kind].base)
