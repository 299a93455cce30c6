"""What the command lines of replay and mirror refuse before Spark starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from seriatim_spark.pipelines.command_line import cluster_of, sink_of
from seriatim_spark.pipelines.commands import main

REPLAY = ["replay", "--to-topic", "again", "--id", "r", "--checkpoint", "/c"]
MIRROR = ["mirror", "--bootstrap", "h:1", "--topic", "orders", "--to-topic", "orders", "--checkpoint", "/c"]
TOPIC = ["--bootstrap", "h:1", "--topic", "orders"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (REPLAY, "--topic"),
        ([*REPLAY, *TOPIC, "--archive", "/a"], "--topic, or --archive"),
        ([*REPLAY, "--bootstrap", "h:1", "--archive", "/a", "-o", "startingOffsets=latest"], "--archive reads none"),
        ([*REPLAY, "--archive", "/a"], "--to-bootstrap is missing"),
        ([*REPLAY, "--bootstrap", "h:1", "--topic", "a,b"], "one topic"),
        ([*REPLAY[:3], "--id", "a/b", "--checkpoint", "/c", *TOPIC], "--id is not a name"),
        ([*REPLAY, *TOPIC, "-o", "failOnDataLoss=false"], "chooses failOnDataLoss itself"),
        ([*REPLAY, *TOPIC, "-o", "startingOfsets=earliest"], "did you mean startingOffsets"),
        ([*REPLAY, *TOPIC, "--to-option", "sequence=1"], "and there is no option 'sequence'"),
        ([*REPLAY, *TOPIC, "--to-option", "writeTimeout"], "there is no = in it"),
        ([*REPLAY, *TOPIC, "--to-option", "writeTimeout=soon"], "writeTimeout is a time"),
        (["replay", *TOPIC, "--to-topic", "a/b", "--id", "r", "--checkpoint", "/c"], "one topic"),
        (MIRROR, "--offsets DIR, or --shared"),
        ([*MIRROR, "--offsets", "/o", "--shared"], "--offsets DIR, or --shared"),
        ([*MIRROR, "--shared", "-o", "ordering=none"], "give ordering=partition"),
        ([*MIRROR, "--shared", "-o", "columns=value"], "chooses the columns"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: list[str], told: str) -> None:
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 2
    assert told in " ".join(found.output.split())


@pytest.mark.parametrize("name", ["replay", "mirror"])
def test_each_option_has_a_help(name: str) -> None:
    found = CliRunner().invoke(main, [name, "--help"])
    assert found.exit_code == 0
    for option in main.commands[name].params:
        assert getattr(option, "help", "") or option.name == "help", option.name


@pytest.mark.parametrize("option", ["--option", "--to-option"])
@pytest.mark.parametrize("text", ["tlsKeys=SECRET", "tlsKeySECRET"])
def test_what_stands_in_a_wrong_option_is_not_told(option: str, text: str) -> None:
    if (option, text) == ("--option", "tlsKeySECRET"):
        text = "SECRET"
    found = CliRunner().invoke(main, [*REPLAY, *TOPIC, option, text])
    assert found.exit_code == 2
    assert "SECRET" not in found.output


def test_a_replayed_archive_goes_to_the_cluster_that_is_named() -> None:
    given = {
        "bootstrap": "h:1", "topic": None, "to_topic": "again", "to_bootstrap": None, "to_more": (), "tls_ca": None,
        "tls_cert": None, "tls_key": None, "tls_server_name": None,
    }  # fmt: skip
    assert sink_of(given, cluster_of(given)) == {"bootstrap": "h:1", "topic": "again"}
    assert sink_of({**given, "to_bootstrap": "t:2"}, cluster_of(given)) == {"bootstrap": "t:2", "topic": "again"}
