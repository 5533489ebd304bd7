"""The manual has each command, option, key, setting and variable that there is, and no other.

Where it does not, the message says which lines go where.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import docutils.nodes
import manual
import pytest
from manual import PAGES, PROGRAMS, ROOT

from hpcext import config, jobfile, policies, protocol
from hpcext.admin import slurm, sources
from hpcext.cli import admin, broker
from hpcext.cli import main as cli
from hpcext.launch.trackers import MLFLOW_PARAMS, MLFLOW_RUN, WANDB_RESUME, WANDB_RUN
from hpcext.policies import POLICIES
from hpcext.policies.bftrainer.limits import read_limits
from hpcext.rendezvous import Rendezvous

HARMLESS = re.compile("skipping paragraph macro: sp after S[HS]$")
"""What docutils writes at the beginning of every section; it has no effect."""

COMMANDS = {
    prog: parser for make in PROGRAMS.values() for prog, parser in manual.commands(make).items()
}
TOP = {
    "hpcext": cli.make_parser()[1],
    "hpcext-admin": admin.make_parser()[1],
    "hpcext-broker": broker.make_parser()[1],
}
"""The parsers of each program's commands."""

ORDER = [
    "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "OTHER PAGES", "EXIT STATUS", "ENVIRONMENT",
    "FILES", "EXAMPLES", "SEE ALSO",
]  # fmt: skip
"""Sections that several pages have. Others stand where they are best read."""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages as hpcext-admin installs them, by the names of their sources."""
    folder = tmp_path_factory.mktemp("man")
    found = {}
    for piece in slurm.manual_pages(sources.find() / "man", folder):
        piece.path.parent.mkdir(exist_ok=True)
        piece.path.write_bytes(piece.data)
        found[f"{piece.path.name}.rst"] = piece.path
    return found


def heading(name: str) -> tuple[str, str, str]:
    """Name, summary and section of a page."""
    document = manual.page(name)
    summary = document.next_node(docutils.nodes.subtitle).astext()
    number = re.search(r"^:Manual section: (\d)$", (ROOT / "man" / name).read_text(), re.M)
    assert number, f"man/{name}: no line :Manual section:"
    return document.next_node(docutils.nodes.title).astext(), summary, number[1]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_clean_roff(path: Path, installed: dict[str, Path]) -> None:
    mandoc = shutil.which("mandoc")
    assert mandoc, "mandoc is not installed; make test installs it"
    lint = [mandoc, "-Tlint", "-Wwarning", installed[path.name]]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    told = done.stdout.splitlines() + done.stderr.splitlines()
    assert [line for line in told if not HARMLESS.search(line)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_their_sections(path: Path, installed: dict[str, Path]) -> None:
    name, _, number = heading(path.name)
    assert path.name == f"{name}.{number}.rst"
    assert installed[path.name].parent.name == f"man{number}"
    titles = manual.titles(manual.page(path.name))
    assert [each for each in ORDER if each in titles] == [each for each in titles if each in ORDER]
    wanted = {"DESCRIPTION", "SEE ALSO", *(["SYNOPSIS", "EXAMPLES"] if number == "1" else [])}
    assert wanted <= set(titles)


def test_pages_come_with_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.data_files"]["share/hpcext/man"].split()
    missing = [
        path.name for path in PAGES if not any(fnmatch(f"man/{path.name}", p) for p in patterns)
    ]
    assert missing == [], "setup.cfg, [options.data_files]: add them to share/hpcext/man"
    spec = (ROOT / "site_configs" / "packaging" / "hpcext.spec").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"^/usr/share/man/(.*)$", spec, re.MULTILINE)
    there = [f"man{path.stem[-1]}/{path.stem}" for path in PAGES]
    missing = [name for name in there if not fnmatch(name, pattern)]
    assert missing == [], "hpcext.spec: %files lacks them, and rpmbuild ends"


def test_every_command_has_a_page_and_no_other_has() -> None:
    wanted = {"hpcext.1.rst", *map(manual.page_of, manual.commands())}
    there = {path.name for path in PAGES if path.name.endswith(".1.rst")}
    missing = "\n".join(map(manual.drafting, sorted(wanted - there)))
    assert not missing, f"commands without a page; drafts, to be gone over:\n{missing}"
    assert there - wanted == set(), "pages without a command"


def test_the_overview_lists_all_pages_with_their_summaries() -> None:
    listed = {}
    for title in ("COMMANDS", "OTHER PAGES"):
        for term in manual.terms(manual.section(manual.page("hpcext.1.rst"), title)):
            listed[term.astext()] = manual.definition(term)
    wanted = {}
    for path in PAGES:
        if path.name != "hpcext.1.rst":
            name, summary, number = heading(path.name)
            wanted[f"{name}({number})"] = f"{summary[0].upper()}{summary[1:]}."
    missing = [
        name.join(("**", f"\n    {text}\n")).replace("(", "**\\(")
        for name, text in wanted.items()
        if listed.get(name) != text
    ]
    assert not missing, "man/hpcext.1.rst, COMMANDS or OTHER PAGES:\n" + "".join(missing)
    assert listed.keys() == wanted.keys()


def arguments(form: docutils.nodes.paragraph, has_rest: bool) -> Iterator[str]:
    """The words of a synopsis that stand for themselves, and for no option's value."""
    of_option = False
    for node in form.children:
        if isinstance(node, docutils.nodes.strong):
            of_option = node.astext().startswith("-")
        elif isinstance(node, docutils.nodes.emphasis):
            if not of_option:
                yield node.astext()
        elif has_rest and "--" in node.astext():
            return  # What follows is for another program.
        elif "]" in node.astext():
            of_option = False


@pytest.mark.parametrize("prog", COMMANDS)
def test_a_synopsis_has_the_arguments_and_options_and_no_others(prog: str) -> None:
    name, parser = manual.page_of(prog), COMMANDS[prog]
    section = manual.section(manual.page(name), "SYNOPSIS")
    forms = [
        form for form in section.findall(docutils.nodes.paragraph) if manual.bold(form)[0] == prog
    ]
    draft = f"man/{name}, SYNOPSIS; of the parser it would be\n{manual.form(parser)}"
    assert forms, draft
    shown = {word for form in forms for word in manual.bold(form)[1:] if word.startswith("-")}
    for action in manual.options(parser):
        assert shown & set(action.option_strings), draft
        shown -= set(action.option_strings)
    assert shown == set(), draft
    program, word = prog.split()[:2]
    has_rest = TOP[program][word].get_default("rest") is not None
    found = [word for form in forms for word in arguments(form, has_rest)]
    assert list(dict.fromkeys(found)) == manual.arguments(parser), draft


@pytest.mark.parametrize("prog", COMMANDS)
def test_every_option_is_explained_and_no_other(prog: str) -> None:
    name, parser = manual.page_of(prog), COMMANDS[prog]
    where = manual.own_section(prog)
    wanted = {frozenset(action.option_strings): action for action in manual.options(parser)}
    explained = {}
    if " " in where and where not in manual.page(name).astext():
        pytest.fail(f"man/{name}, COMMANDS:\n\n{manual.part(parser)}")
    if wanted or " " in where:
        for term in manual.terms(manual.section(manual.page(name), where)):
            explained[frozenset(manual.bold(term))] = term
    missing = [manual.entry(wanted[names]) for names in wanted.keys() - explained.keys()]
    assert not missing, f"man/{name}, {where}:\n\n" + "".join(missing)
    assert explained.keys() == wanted.keys(), f"man/{name}, {where}: there are no such options"
    for names, term in explained.items():
        takes_value = wanted[names].nargs != 0
        has_value = term.next_node(docutils.nodes.emphasis) is not None
        assert takes_value == has_value, f"man/{name}: {manual.entry(wanted[names])}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_general_options_are_in_the_manual(name: str) -> None:
    parser = PROGRAMS[name]()[0]
    wanted = {word for action in parser._actions for word in action.option_strings}
    section = manual.section(manual.page(name), "OPTIONS")
    assert {word for term in manual.terms(section) for word in manual.bold(term)} == wanted


def test_pages_that_are_named_exist() -> None:
    there = {path.name.removesuffix(".rst") for path in PAGES}
    for path in PAGES:
        named = re.findall(r"\*\*([a-z_.-]*hpcext[a-z_.-]*)\*\*\\\((\d)\)", path.read_text())
        assert {".".join(each) for each in named} <= there, path.name


# What is in files and in the environment.


def test_every_job_key_is_in_the_manual_and_no_other() -> None:
    section = manual.section(manual.page("hpcext-jobs.5.rst"), "KEYS")
    explained = [term.astext() for term in manual.terms(section)]
    assert explained == list(jobfile.KEYS), "man/hpcext-jobs.5.rst, KEYS"


KINDS = {
    "str": "String.", "Path": "String.", "int": "Integer.", "float": "Number.", "bool": "Boolean.",
    "int | str": "Integer or string.",
}  # fmt: skip
"""How the page names the type of a setting."""


def test_every_setting_is_in_the_manual_with_its_type_default_and_variable() -> None:
    section = manual.section(manual.page("hpcext.toml.5.rst"), "SETTINGS")
    terms = list(manual.terms(section))
    wanted = [[name, facts["variable"]] for name, facts in config.SETTINGS.items()]
    assert [manual.literals(term) for term in terms] == wanted, "man/hpcext.toml.5.rst, SETTINGS"
    home = str(protocol.user_directory("state"))
    for term in terms:
        name, text = manual.literals(term)[0], manual.definition(term)
        default = str(config.Settings().values()[name]).removesuffix(".0") or "none"
        default = default.replace(home, "~/.local/state/hpcext")
        assert text.startswith(KINDS[config.Settings.__annotations__[name]]), f"{name}: {text}"
        assert text.endswith(f" Default: {default}."), f"{name}: {text}"


def test_every_policy_and_option_is_in_the_manual() -> None:
    document = manual.page("hpcext-policies.7.rst")
    named = [term.astext() for term in manual.terms(manual.section(document, "POLICIES"))]
    assert named == list(POLICIES)
    listed = {
        part.next_node(docutils.nodes.title).astext(): [
            each.astext() for each in manual.terms(part)
        ]
        for part in manual.section(document, "OPTIONS").findall(docutils.nodes.section)
        if part.next_node(docutils.nodes.title).astext() != "OPTIONS"
    }
    assert listed == {
        name: list(options.__struct_fields__)
        for name in POLICIES
        if (options := policies.find(name).options)
    }


def test_the_limits_that_the_manual_shows_are_good(tmp_path: Path) -> None:
    example = manual.section(manual.page("hpcext-policies.7.rst"), "LIMITS")
    path = tmp_path / "limits.toml"
    path.write_text(example.next_node(docutils.nodes.literal_block).astext())
    assert [limit.name for limit in read_limits(str(path))] == [
        "licences", "share of the vision group",
    ]  # fmt: skip


def variables(name: str, title: str = "ENVIRONMENT") -> set[str]:
    """Variables that a section of a page explains."""
    section = manual.section(manual.page(name), title)
    return {word for term in manual.terms(section) for word in manual.literals(term)}


def test_every_variable_of_a_job_is_in_the_manual() -> None:
    here = Path("/")
    attempt = protocol.Attempt("1", 1, 1, here, here, 1)
    of_trackers = {WANDB_RUN, WANDB_RESUME, MLFLOW_RUN, MLFLOW_PARAMS}
    of_trackers |= {protocol.TRACKERS_VARIABLE, protocol.RESTART_STEP_VARIABLE}
    wanted = {*attempt.environ(), "HPCEXT_NODE_INDEX", *of_trackers}
    assert variables("hpcext.1.rst") == wanted, "man/hpcext.1.rst, ENVIRONMENT"
    of_rank = {"HPCEXT_RANK", *Rendezvous(here).environ()} - wanted
    explained = variables("hpcext-launch.1.rst")
    assert explained == of_rank, "man/hpcext-launch.1.rst, ENVIRONMENT"


def test_every_variable_in_the_source_is_in_the_manual_and_no_other() -> None:
    explained = set()
    for path in PAGES:
        titles = {"ENVIRONMENT", "SETTINGS", "ARGUMENTS"} & {*manual.titles(manual.page(path.name))}
        found = {word for title in titles for word in variables(path.name, title)}
        explained |= {word for word in found if word.startswith("HPCEXT_")}
    # Variables of settings are named after these.
    read = {str(facts["variable"]) for facts in config.SETTINGS.values()}
    # A name in a comment is spoken of, not read; and HPCEXT_ alone is a prefix.
    for path in (ROOT / "hpcext").rglob("*.py"):
        code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
        read |= set(re.findall(r"(HPCEXT_[A-Z_]*[A-Z])[\"'=]", code))
    advice = "section ENVIRONMENT of the page of the command that reads it"
    assert read - explained == set(), f"not in the manual: {advice}"
    assert explained - read == set(), "nothing reads these"


def test_every_option_of_sbatch_and_argument_of_bsub_is_in_the_manual() -> None:
    plugin = (ROOT / "spank_hooks/options.c").read_text()
    table = dict(re.findall(r'\[(OPTION_\w+)\] = \{VALUE_\w+, "(\w+)", SENT "\w+"\}', plugin))
    document = manual.page("spank_hpcext.8.rst")
    explained = [
        word for t in manual.terms(manual.section(document, "OPTIONS")) for word in manual.bold(t)
    ]
    registered = re.findall(r'\.name = "(hpcext-\w+)"', plugin)
    assert len(registered) == len(table)
    assert sorted(explained) == sorted(f"--{name}" for name in registered)
    given = variables("spank_hpcext.8.rst")
    assert given == {*table.values(), "HPCEXT_SUSPENDABLE"}
    esub = (ROOT / "lsf_scripts/esub.hpcext").read_text()
    keys = re.search(r"^keys='(.*)'$", esub, re.M)
    assert keys
    section = manual.section(manual.page("esub.hpcext.8.rst"), "ARGUMENTS")
    pairs = [manual.literals(term) for term in manual.terms(section)]
    wanted = dict(re.findall(r"\[(\w+)\]=(HPCEXT_\w+)", esub))
    assert wanted.keys() == set(keys[1].split())
    assert dict(pairs) == wanted


# What it shows.


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    for path in PAGES:
        for line in re.findall(r"^    \$ (.*)", path.read_text(encoding="utf-8"), re.M):
            yield path.name, shlex.split(line, comments=True)


SHOWN = list(shown_commands())


@pytest.mark.parametrize(
    ("where", "words"), SHOWN, ids=[f"{where}: {shlex.join(words)}" for where, words in SHOWN]
)
def test_commands_that_are_shown_are_taken(where: str, words: list[str]) -> None:
    parse: Any = {"hpcext": cli.parse, "hpcext-admin": admin.parse, "hpcext-broker": broker.parse}[
        words[0]
    ]
    args = parse(words[1:])
    assert callable(args.run)


@pytest.mark.parametrize("prog", manual.commands())
def test_each_command_is_shown_on_its_page(prog: str) -> None:
    name = manual.page_of(prog)
    shown = [shlex.join(words) + " " for where, words in SHOWN if where == name]
    example = str(COMMANDS[prog].epilog).removeprefix("example: ")
    assert any(line.startswith(f"{prog} ") for line in shown), (
        f"man/{name}, EXAMPLES:\n    $ {example}"
    )
