"""What is reported to administrators beside an error: advice that fits wherever the number comes from, and causes they
can read."""

from __future__ import annotations

import io
import sys

import pytest
from click.testing import CliRunner
from seriatim._transport.reasons import explain
from seriatim.cli._rendering.remedies import remedy_of
from seriatim.cli.produce import TERMINAL_HINT, produce
from seriatim_api.errors import BadRequestError, UnknownGroupError, UnknownTopicError, UnsupportedModeError


def test_a_bad_request_speaks_for_itself() -> None:
    assert remedy_of(BadRequestError("'g9' means nothing in this cluster")) == ""
    assert "group list" in remedy_of(UnknownGroupError("no consumer group 'g' on topic 't'"))
    assert "--mode" in remedy_of(UnsupportedModeError("group g is key_ordered, and the consumer asks for exclusive"))
    assert "topic create" in remedy_of(UnknownTopicError("there is no topic 'x'"))


UNREACHABLE = "failed to connect to all addresses; last error:"


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.7:7100: Connection refused",
            "Connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.7:7100: reset: by peer",
            "reset: by peer",
        ),
        (
            f"{UNREACHABLE} UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        (f"{UNREACHABLE} UNKNOWN: ipv6:[::1]:1: recvmsg:Connection reset by peer (104)", "Connection reset by peer"),
        ("getsockopt(SO_ERROR): Connection reset by peer", "Connection reset by peer"),
        ("Socket closed", "Socket closed"),
        (
            "errors resolving no:70: [field:hostname lookup error:lookup failed for no:70: Domain name not found]",
            "the name has no address: Domain name not found",
        ),
        (
            "DNS resolution failed for no:70: C-ares status is not ARES_SUCCESS qtype=A name=no: Domain name not found",
            "the name has no address: Domain name not found",
        ),
        (None, "no reason given"),
    ],
)
def test_the_cause_of_an_unreachable_broker_is_not_buried(details: str | None, reason: str) -> None:
    assert explain(details, None) == (reason, False)


class _Keyboard(io.StringIO):
    """A terminal without a user at the keyboard."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("nobody types here")


@pytest.mark.parametrize(("options", "is_told"), [((), True), (("--size", "3"), False)])
def test_who_types_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], is_told: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", _Keyboard())
    with pytest.raises(OSError, match="nobody types"):
        produce.main(["t", *options], standalone_mode=False)
    assert (TERMINAL_HINT in capsys.readouterr().err) is is_told


def test_a_message_in_the_place_of_the_file_is_told_where_messages_come_from() -> None:
    done = CliRunner().invoke(produce, ["orders", "hello"])
    assert done.exit_code == 2
    assert "'hello': No such file or directory" in done.output
    assert "standard input" in done.output
