"""The root command: it loads a sub-command when it is used, and turns errors into one line and an exit status.

Exit status: 0 done; 1 an error of the catalogue or of the operating system, or the answer to a question was no; 2 wrong
usage, or a question without a terminal; 130 interrupted; 141 the reader of the output has ended.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import SeriatimError, UnavailableError
from seriatim_api.terminal.safe_text import echo

from seriatim.cli._options.settings import Settings, TlsOptions, resolve
from seriatim.cli._rendering.remedies import remedy_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP: Final = "seriatim.commands"
OUTPUTS: Final = ("text", "json")
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The status that a shell reports if SIGPIPE ends a process. `seriatim consume ... | head` ends so, and no error is
printed."""

_OWN_COMMANDS: Final = {
    "topic": ("topic", "Create, list, describe, alter and delete topics."),
    "produce": ("produce", "Send lines, or generated messages, to a topic."),
    "consume": ("consume", "Read a topic in order, as a consumer group."),
    "chain": ("chain", "Draw chains, declare a lost segment a gap, read quarantined messages."),
    "group": ("group", "List, describe, create, rewind, skip, pause and delete consumer groups."),
    "dead-letter": ("dead_letter", "List, show, replay and drop messages on which a group failed for good."),
    "delayed": ("delayed", "List and count messages that are delayed, and cancel them."),
    "owner": ("owner", "List and show the programs that own names, take a name away."),
    "writer": ("writer", "List writers, show what each has published, delete one."),
    "balance": ("balance", "Spread the open segments over the brokers, by traffic."),
    "broker-group": ("broker_group", "List, cordon, drain, activate and remove broker groups."),
    "member": ("member", "List brokers, check whether one may be stopped, declare a member run dead."),
    "scrub": ("scrub", "Have brokers read their disks, and repair damaged copies."),
    "check": ("check", "Check recorded histories for lost, repeated and reordered messages."),
}


class _ReaderEndedError(Exception):
    """What reads the output has ended. click knows only the error of the system, and would end with status 1."""


@contextmanager
def _noticing_the_readers_end() -> Iterator[None]:
    try:
        yield
    except (OSError, BaseExceptionGroup) as error:
        if isinstance(expected_error(error), BrokenPipeError):
            raise _ReaderEndedError from error
        raise


SUMMARY_MAX: Final = 300
"""Characters of a command's first sentence in the list of commands: each is shown in full, on several lines if
needed."""


class RootGroup(click.Group):
    """Loads a sub-command's module only when it is used. So a missing or broken module does not harm the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """This package's commands, in the order in which a new user needs them, then those of other packages."""
        return [*_OWN_COMMANDS, *sorted(set(_plugins()) - set(_OWN_COMMANDS))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name. If it cannot be loaded, a command that says why."""
        if cmd_name in _OWN_COMMANDS:
            module = importlib.import_module(f"seriatim.cli.{_OWN_COMMANDS[cmd_name][0]}")
            command = getattr(module, cmd_name.replace("-", "_"))
            assert isinstance(command, click.Command), cmd_name
            return _with_output(command)
        plugin = _plugins().get(cmd_name)
        return None if plugin is None else _with_output(_load(plugin))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list for the help text. It does not import our own commands. A broken plugin gets a line too."""
        rows = [(name, summary) for name, (_, summary) in _OWN_COMMANDS.items()]
        others = []
        for name in self.list_commands(ctx):
            command = None if name in _OWN_COMMANDS else self.get_command(ctx, name)
            if command is not None and not command.hidden:
                others.append((name, command.get_short_help_str(limit=SUMMARY_MAX)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if others:
            with formatter.section("Servers and local clusters"):
                formatter.write_dl(others)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, which does not know our commands: the error names the one that was probably meant.

        For a server command that is not installed, the error names the package that has it.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args and args[0] in _SERVER_COMMANDS:
                package = _SERVER_COMMANDS[args[0]]
                where = " ".join(_IN_A_CLONE[package])
                text = (
                    f"'{args[0]}' belongs to the package {package}, which is not installed here. Install it "
                    f"(in a clone: pip install {where})."
                )
                raise click.UsageError(text, ctx) from error
            if args and hasattr(error, "possibilities"):
                error.possibilities = difflib.get_close_matches(args[0], self.list_commands(ctx))
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and flush its output.

        Raises:
            _ReaderEndedError: What reads the output has ended.
        """
        with _noticing_the_readers_end():
            try:
                result = super().invoke(ctx)
            except Exception as error:
                _note_origin(ctx, error)
                raise
            sys.stdout.flush()
        return result

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the options. `--help` prints here.

        Raises:
            _ReaderEndedError: What reads the output has ended.
        """
        with _noticing_the_readers_end():
            return super().make_context(*args, **kwargs)

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:
        """Run the command, and exit with one of the statuses in the module's docstring."""
        try:
            status = super().main(args=args, prog_name="seriatim", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            echo("interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except _ReaderEndedError:
            _forget_unwritten()
            sys.exit(EXIT_BROKEN_PIPE)
        except Exception as error:
            expected = expected_error(error)
            if expected is None:
                raise
            show_error(expected, as_json=_wants_json(sys.argv[1:] if args is None else args))
            sys.exit(EXIT_ERROR)
        sys.exit(status if isinstance(status, int) else 0)  # `ctx.exit` returns its status here


def _note_origin(ctx: click.Context, error: Exception) -> None:
    """At an error without an answer, say where the addresses come from if no option named them."""
    found = expected_error(error)
    if isinstance(found, UnavailableError) and isinstance(ctx.obj, Settings) and ctx.obj.origin:
        found.add_note(ctx.obj.origin)


def _forget_unwritten() -> None:
    """Give what is left to /dev/null. The interpreter flushes at its end, and would print another error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _with_output(command: click.Command) -> click.Command:
    """Let a command and its sub-commands take --output too, because users write it at the end of the line.

    The list of the sub-commands shows the whole first sentence of each.

    A command that has its own --output keeps it, for example `consume`.
    """
    if not any("--output" in parameter.opts for parameter in command.params):
        option = click.Option(
            ["--output"], type=click.Choice(OUTPUTS), expose_value=False, callback=_take_output,
            help="As before the command: human-readable text, or json for programs.",
        )  # fmt: skip
        command.params.append(option)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _with_output(below)
            below.short_help = below.get_short_help_str(limit=SUMMARY_MAX)  # click would cut it at 45 characters
    return command


def _take_output(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.find_root().params["output"] = value
        if isinstance(ctx.obj, Settings):
            ctx.obj = replace(ctx.obj, as_json=value == "json")


_SERVER_COMMANDS: Final = {
    "broker": "seriatim-broker",
    "coordinator": "seriatim-broker",
    "standalone": "seriatim-local",
    "cluster": "seriatim-local",
}
"""The package that has each command of a server."""

_IN_A_CLONE: Final = {
    "seriatim-broker": ("./api", "./broker"),
    "seriatim-local": ("./api", "./broker", "./local"),
}
"""The directories that pip needs for a package, because no index has Seriatim yet."""


def expected_error(error: BaseException) -> SeriatimError | OSError | None:
    """The error that a user can do something about, also if a task group wrapped it. None: it is a bug."""
    if isinstance(error, SeriatimError | OSError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    return None


def show_error(error: SeriatimError | OSError, *, as_json: bool) -> None:
    """Print an error on stderr: one line, and one more line if there is advice."""
    if not isinstance(error, SeriatimError):
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        echo(json.dumps({"error": {"message": text}}) if as_json else f"error: {text}", err=True)
        return
    if as_json:
        fields = {"number": error.number, "class": type(error).__name__, "message": error.message}
        echo(json.dumps({"error": {**fields, "details": error.details}}), err=True)
        return
    echo(f"error {error.number}: {error.message}", err=True)
    remedy = "; ".join(getattr(error, "__notes__", ())) or remedy_of(error)
    if remedy:
        echo(f"  {remedy}", err=True)


def _wants_json(args: Sequence[str]) -> bool:
    """Whether `--output json` was given. Read from the words, because click's context is gone when an error arrives."""
    words = list(args)
    return "--output=json" in words or any(pair == ("--output", "json") for pair in pairwise(words))


def _plugins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # our own commands do not need it

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load(plugin: EntryPoint) -> click.Command:
    """The plugin's command. If it cannot be loaded, a command that says why."""
    try:
        command = plugin.load()
    except Exception as error:
        return _broken(plugin, f"{type(error).__name__}: {error}")
    if not isinstance(command, click.Command):
        return _broken(plugin, f"{plugin.value} is not a command")
    return command


def _broken(plugin: EntryPoint, why: str) -> click.Command:
    package = "?" if plugin.dist is None else plugin.dist.name
    text = f"the command '{plugin.name}' of the package {package} cannot be loaded: {why}"

    def explain() -> None:
        raise click.ClickException(text)

    return click.Command(
        plugin.name,
        callback=explain,
        short_help=f"(broken: {why})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
    )


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--bootstrap",
    envvar="SERIATIM_BOOTSTRAP",
    metavar="HOST:PORT,...",
    help="Brokers to connect to first. [default: those of the local cluster that runs here, else 127.0.0.1:7400]",
)
@click.option("--output", type=click.Choice(OUTPUTS), default="text", show_default=True)
@click.option("--tls-ca", envvar="SERIATIM_TLS_CA", metavar="FILE", help="Use TLS, with this CA of the brokers (PEM).")
@click.option("--tls-cert", envvar="SERIATIM_TLS_CERT", metavar="FILE", help="The client's certificate (PEM).")
@click.option("--tls-key", envvar="SERIATIM_TLS_KEY", metavar="FILE", help="The client's private key (PEM).")
@click.option(
    "--tls-server-name",
    envvar="SERIATIM_TLS_SERVER_NAME",
    metavar="NAME",
    help="The name in the brokers' certificates. [default: the name that is dialed]",
)
@click.version_option(package_name="seriatim", message="seriatim %(version)s")
@click.pass_context
def main(
    ctx: click.Context,
    bootstrap: str | None,
    output: str,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_server_name: str | None,
) -> None:
    """Strictly ordered messages that outlive their brokers."""
    # gRPC would print each failed handshake, several in a second. Our own errors say what failed.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    addresses, tls, origin = resolve(bootstrap, TlsOptions(tls_ca, tls_cert, tls_key, tls_server_name))
    ctx.obj = Settings(bootstrap=addresses, as_json=output == "json", tls=tls, origin=origin)
