"""The command itself: found by metadata, one import at a time, with exit codes that programs can read."""

from __future__ import annotations

import json

BROKEN = "raise RuntimeError('imported')"
HELLO = """
import click, sys
@click.command()
@click.option("--fail", is_flag=True)
def command(fail):
    from ferrule import FerruleError
    if fail:
        raise FerruleError("no luck")
    print("hello", "numpy" in sys.modules)
"""


def commands(module: str, name: str = "hello") -> dict:
    return {"ferrule.commands": {name: f"{module}:command"}}


def test_help_and_the_list_of_plugins_import_no_plugin(site):
    site.add(
        "loud", points={"ferrule.losses": {"loud": "loud:X"}, **commands("loud", "shout")}, modules={"loud": BROKEN}
    )
    site.add("told", points=commands("told", "tell"), modules={"told": BROKEN}, summary="Tells a tale")
    shown = site.run("--help")
    assert shown.returncode == 0
    for line in ("check", "explain", "plugins", "train", "shout", "(from loud 1.0)", "Tells a tale (told 1.0)"):
        assert line in shown.stdout
    listed = site.run("plugins", "list", "--json")
    assert listed.returncode == 0
    assert [p for p in json.loads(listed.stdout)["plugins"] if p["name"] == "loud"] == [
        {"kind": "loss", "name": "loud", "distribution": "loud", "version": "1.0", "requires": "", "state": "ok"}
    ]


def test_the_first_word_imports_its_command_and_nothing_else(site):
    site.add("loud", points=commands("loud", "shout"), modules={"loud": BROKEN})
    site.add("polite", points=commands("polite"), modules={"polite": HELLO})
    done = site.run("hello")
    assert (done.returncode, done.stdout) == (0, "hello False\n")
    done = site.run("shout")
    assert done.returncode == 2
    assert "command 'shout' of loud 1.0 did not load: RuntimeError: imported" in done.stderr


def test_exit_codes_tell_a_mistake_from_a_failure(site, command):
    site.add("polite", points=commands("polite"), modules={"polite": HELLO})
    code, out, err = command("hello", "--fail")
    assert (code, out, err) == (1, "", "no luck\n")
    code, _, err = command("helo")
    assert code == 2
    assert "no command is called 'helo'; did you mean 'hello'?" in err
    assert command("hello", "--wrong")[0] == 2
    assert command("--version") == (0, "ferrule 0.1.0\n", "")


def test_a_stranger_cannot_take_a_command_of_the_core_over_and_two_strangers_are_told_apart(site, command):
    for name in ("one", "two"):
        module = f"polite_{name}"
        site.add(
            f"polite-{name}",
            points={"ferrule.commands": {"hello": f"{module}:command", "check": f"{module}:command"}},
            modules={module: HELLO},
        )
    assert "CONFIG" in command("check", "--help")[1]
    code, _, err = command("hello")
    assert code == 2
    assert "ferrule hello@polite-one or ferrule hello@polite-two" in err
    assert command("hello@polite-two")[0] == 0
    assert command("check@polite-one")[:2] == (0, "hello True\n")


def test_a_command_that_is_no_click_command_says_so(site, command):
    site.add("odd", points=commands("odd"), modules={"odd": "command = print"})
    code, _, err = command("hello")
    assert code == 2
    assert "is not a click command" in err


def test_the_list_says_what_cannot_be_used_and_why(site, command, monkeypatch):
    loss = {"ferrule.losses": {"twin": "x:X"}}
    site.add("left", points=loss)
    site.add("right", points=loss)
    site.add("old", points={"ferrule.losses": {"old": "x:X"}}, requires=["ferrule<0.1"])
    site.add("off", points={"ferrule.losses": {"off": "x:X"}})
    site.path.joinpath("left-0.9.dist-info").mkdir()
    monkeypatch.setenv("FERRULE_DISABLE", "off")
    code, out, err = command("plugins", "list", "--kind", "loss")
    assert code == 0
    assert "twin\tleft\t1.0\t\tconflict: write twin@left" in out
    assert "old\told\t1.0\tferrule<0.1\told 1.0 needs ferrule<0.1" in out
    assert "off\toff\t1.0\t\tswitched off by FERRULE_DISABLE" in out
    assert "note: left: a folder without metadata" in err
    assert command("plugins", "list", "--kind", "los")[0] == 2


def test_show_asks_a_process_of_its_own(site):
    site.toy()
    shown = site.run("plugins", "show", "toy_grpo")
    assert shown.returncode == 0, shown.stderr
    for part in (
        "advantage toy_grpo",
        "distribution: ferrule-toy",
        "version: 0.3",
        "eps\ta number\t1e-06",
        "scale\tone of 'std', 'none'\t\"std\"",
    ):
        assert part in shown.stdout
    data = json.loads(site.run("plugins", "show", "toy", "--kind", "trainer", "--json").stdout)
    assert data["provides"] == ["cross_entropy", "logprobs"]
    assert [o["name"] for o in data["options"]][:2] == ["device", "threads"]
    several = site.run("plugins", "show", "toy")
    assert several.returncode == 2
    assert "--kind" in several.stderr


def test_a_class_that_no_kind_can_use_is_told_what_is_wrong_with_it_and_not_with_a_kind_nobody_named(site, tmp_path):
    (tmp_path / "mine.py").write_text("import ferrule\nclass Odd: pass\nclass Half(ferrule.AuxLoss): pass\n")
    odd, half, module = (
        site.run("plugins", "show", text, cwd=tmp_path).stderr for text in ("mine.py:Odd", "mine.py:Half", "mine:Half")
    )
    assert odd == "'mine.py:Odd' is no plugin: it extends no base class of a kind\n"
    assert half == "'mine.py:Half' is not finished: it does not define weight\n"
    assert module.startswith("'mine:Half' did not load: ModuleNotFoundError")
    assert module.endswith("a file is written mine.py:Half\n")


def test_a_plugin_that_ends_its_process_does_not_end_ours(site):
    site.add(
        "fatal",
        points={"ferrule.losses": {"fatal": "fatal:X"}},
        modules={"fatal": "import os, sys; print('bye', file=sys.stderr); sys.stderr.flush(); os._exit(9)"},
    )
    site.add("loud", points={"ferrule.losses": {"loud": "loud:X"}}, modules={"loud": BROKEN})
    shown = site.run("plugins", "show", "fatal")
    assert shown.returncode == 1
    assert "loading 'fatal' ended its process (exit code 9): bye" in shown.stderr
    shown = site.run("plugins", "show", "loud")
    assert shown.returncode == 2
    assert "loss 'loud' of loud 1.0 did not load: RuntimeError: imported" in shown.stderr
    assert "did you mean 'loud'" in site.run("plugins", "show", "luod").stderr
