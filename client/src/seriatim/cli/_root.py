"""The root command: finds sub-commands when they are asked for, and turns errors into one line and an exit status.

Exit status: 0 done; 1 an error of the catalogue, or of the system; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import SeriatimError

from seriatim.cli._remedies import remedy_of
from seriatim.cli._settings import Settings, TlsOptions, resolve

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP: Final = "seriatim.commands"
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""As the shell reports a process that SIGPIPE ended: `seriatim consume ... | head` is nobody's fault."""

_OWN_COMMANDS: Final = {
    "topic": ("topic", "Create, list, describe, alter and delete topics."),
    "produce": ("produce", "Send lines, or generated messages, to a topic."),
    "consume": ("consume", "Read a topic in order, as a consumer group."),
    "chain": ("chain", "Chains of segments: draw them, give up a lost one, read quarantined messages."),
    "group": ("group", "Consumer groups: look at them, make, rewind, pause and forget them."),
    "writer": ("writer", "Writers: what each has published, and forgetting one."),
    "balance": ("balance", "Spread the heads of partitions over the brokers, by traffic."),
    "broker-group": ("broker_group", "Groups of brokers: list, cordon, drain, take back, forget them."),
    "member": ("member", "Brokers: list them, may one be stopped, declare one's run dead."),
    "scrub": ("scrub", "Have brokers read their disks, and repair what is damaged."),
    "check": ("check", "Judge recorded histories: lost, repeated, reordered, ..."),
}


class RootGroup(click.Group):
    """Loads a sub-command's module only when it is used, so that one that is missing or broken harms no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our own in the order of a first acquaintance, then those of other packages."""
        return [*_OWN_COMMANDS, *sorted(set(_plugins()) - set(_OWN_COMMANDS))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; one that cannot be loaded says why when it is run."""
        if cmd_name in _OWN_COMMANDS:
            module = importlib.import_module(f"seriatim.cli.{_OWN_COMMANDS[cmd_name][0]}")
            command = getattr(module, cmd_name.replace("-", "_"))
            assert isinstance(command, click.Command), cmd_name
            return command
        plugin = _plugins().get(cmd_name)
        return None if plugin is None else _load(plugin)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help text. Our own are not imported for it; of others one broken line at most."""
        rows = [(name, summary) for name, (_, summary) in _OWN_COMMANDS.items()]
        others = []
        for name in self.list_commands(ctx):
            command = None if name in _OWN_COMMANDS else self.get_command(ctx, name)
            if command is not None and not command.hidden:
                others.append((name, command.get_short_help_str(limit=60)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if others:
            with formatter.section("Servers and local clusters"):
                formatter.write_dl(others)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a word on where server commands come from."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args and args[0] in _SERVER_COMMANDS:
                text = f"'{args[0]}' belongs to the package seriatim-broker, which is not installed here."
                raise click.UsageError(text, ctx) from error
            raise

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:
        """Run, and exit with the status that the module names."""
        try:
            status = super().main(args=args, prog_name="seriatim", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes at its end
            sys.exit(EXIT_BROKEN_PIPE)
        except Exception as error:
            expected = expected_error(error)
            if expected is None:
                raise
            show_error(expected, as_json=_wants_json(sys.argv[1:] if args is None else args))
            sys.exit(EXIT_ERROR)
        sys.exit(status if isinstance(status, int) else 0)  # a number is what `ctx.exit` was given


_SERVER_COMMANDS: Final = ("broker", "coordinator", "standalone", "cluster")


def expected_error(error: BaseException) -> SeriatimError | OSError | None:
    """The failure that a person can do something about, also if a task group wrapped it; None: it is our bug."""
    if isinstance(error, SeriatimError | OSError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return found[0] if all(found) else None
    return None


def show_error(error: SeriatimError | OSError, *, as_json: bool) -> None:
    """One line on stderr, and one more if we know what helps."""
    if not isinstance(error, SeriatimError):
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        click.echo(json.dumps({"error": {"message": text}}) if as_json else f"error: {text}", err=True)
        return
    if as_json:
        fields = {"number": error.number, "class": type(error).__name__, "message": error.message}
        click.echo(json.dumps({"error": {**fields, "details": error.details}}), err=True)
        return
    click.echo(f"error {error.number}: {error.message}", err=True)
    remedy = remedy_of(error)
    if remedy:
        click.echo(f"  {remedy}", err=True)


def _wants_json(args: Sequence[str]) -> bool:
    """Whether --output json was asked for; read from the words, for the context is gone when an error arrives."""
    words = list(args)
    return "--output=json" in words or any(pair == ("--output", "json") for pair in pairwise(words))


def _plugins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # our own commands do without

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load(plugin: EntryPoint) -> click.Command:
    """The plugin's command, or one that explains what is wrong with it."""
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
    help="Brokers to begin with. [default: the local cluster's, if one runs here, else 127.0.0.1:7400]",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--tls-ca", envvar="SERIATIM_TLS_CA", metavar="FILE", help="Speak TLS: the CA of the brokers (PEM).")
@click.option("--tls-cert", envvar="SERIATIM_TLS_CERT", metavar="FILE", help="The client's certificate (PEM).")
@click.option("--tls-key", envvar="SERIATIM_TLS_KEY", metavar="FILE", help="Its private key (PEM).")
@click.option(
    "--tls-server-name",
    envvar="SERIATIM_TLS_SERVER_NAME",
    metavar="NAME",
    help="The name in the brokers' certificates, if it is not the one that is dialed.",
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
    if ctx.invoked_subcommand in _OWN_COMMANDS:
        # gRPC would print each failed handshake, several a second; what failed is in our own errors.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    addresses, tls = resolve(bootstrap, TlsOptions(tls_ca, tls_cert, tls_key, tls_server_name))
    ctx.obj = Settings(bootstrap=addresses, as_json=output == "json", tls=tls)
