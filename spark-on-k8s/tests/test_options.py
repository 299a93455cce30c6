"""What users may give as options, and what they learn of the rest."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.columns import DEFAULT_COLUMNS
from seriatim_spark.errors import OptionError
from seriatim_spark.offsets import UserPlaces
from seriatim_spark.options import NAMES, parse, parse_target

LEAST = {"bootstrap": "one:7400, two:7400", "topic": "orders"}


def test_the_least_that_is_needed_and_the_defaults() -> None:
    options = parse(LEAST)
    assert options.target.bootstrap == "one:7400,two:7400"
    assert options.topics == ("orders",)
    assert options.columns == DEFAULT_COLUMNS
    assert (options.start, options.end, options.ordering) == ("earliest", None, "partition")
    assert options.fail_on_data_loss


def test_names_come_in_any_case_and_spark_adds_its_own() -> None:
    given = {"BOOTSTRAP": "h:1", "Topic": "b, a", "maxrowspertrigger": "10", "checkpointlocation": "/tmp/c"}
    options = parse(given)
    assert options.topics == ("a", "b")
    assert options.max_rows == 10


def test_each_option_is_read() -> None:
    options = parse(
        LEAST
        | {
            "partitions": "0, 2-4", "columns": "*,headers",
            "startingOffsets": '{"orders": {"0": "1:5", "2": "latest"}}',
            "endingTimestamp": "2026-01-31T10:00Z", "ordering": "none", "minPartitions": "7",
            "maxBytesPerPartition": "64MiB", "failOnDataLoss": "false", "readTimeout": "1500ms",
            "maxRowsPerTrigger": "100", "maxBytesPerTrigger": "1GB", "minRowsPerTrigger": "5", "maxTriggerDelay": "2m",
            "tlsCa": "/ca", "tlsCert": "/cert", "tlsKey": "/key", "tlsServerName": "broker",
        }
    )  # fmt: skip
    assert options.partitions == {0, 2, 3, 4}
    assert options.columns == (*DEFAULT_COLUMNS, "headers")
    assert options.start == {"orders": UserPlaces("", {0: make_offset(1, 5), 2: "latest"})}
    assert options.end == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert (options.min_partitions, options.cut_bytes, options.fail_on_data_loss) == (7, 64 << 20, False)
    assert (options.read_timeout_s, options.trigger_delay_s) == (1.5, 120.0)
    assert (options.max_rows, options.max_bytes, options.min_rows) == (100, 1000**3, 5)
    assert (options.target.tls_ca, options.target.tls_key) == ("/ca", "/key")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topik": "x"}, "did you mean topic?"),
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"zzz": "x"}, "there are bootstrap, topic"),
        ({"path": "/x"}, "without one"),
        ({"topic": "a/b"}, "topic"),
        ({"bootstrap": "nowhere"}, "host:port"),
        ({"columns": "value,vaule"}, "unknown: vaule"),
        ({"columns": "value,*"}, "each once"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "no offset"),
        ({"startingOffsets": '{"orders": {"0": "1:1", "0": "1:2"}}'}, "stands twice"),
        ({"startingOffsets": '{"payments": {"0": "1:1"}}'}, "payments"),
        ({"startingOffsets": "soon"}, "earliest, latest, or JSON"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "both say where the range is cut"),
        ({"startingTimestamp": "2026-01-31T10:00"}, "with its zone"),
        ({"startingTimestamp": "2000", "endingTimestamp": "1000"}, "is later than"),
        ({"maxBytesPerPartition": "1MiB"}, "ordering=none"),
        ({"ordering": "none", "maxBytesPerPartition": "1k"}, "at least 64KiB"),
        ({"minPartitions": "0"}, "above 0"),
        ({"readTimeout": "-1s"}, "30s"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minRowsPerTrigger": "10", "maxRowsPerTrigger": "5"}, "above maxRowsPerTrigger"),
        ({"tlsCert": "/cert", "tlsKey": "/key"}, "tlsCa is missing"),
        ({"tlsCa": "/ca", "tlsKey": "/key"}, "give both"),
        ({"partitions": "3-1"}, "0-15"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(LEAST | given)
    assert told in str(refused.value)


@pytest.mark.parametrize("name", ["bootstrap", "topic"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} is missing"):
        parse({key: value for key, value in LEAST.items() if key != name})


@pytest.mark.parametrize("name", ["tlsKey", "tlsCert", "tlsCa"])
def test_a_key_given_in_place_of_its_path_is_not_shown(name: str) -> None:
    secret = "-----BEGIN PRIVATE KEY-----\nMIIE"
    with pytest.raises(OptionError) as refused:
        parse(LEAST | {"tlsCa": "/ca"} | {name: secret})
    assert "MIIE" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_cluster_alone() -> None:
    assert parse_target({"bootstrap": "h:1", "tlsca": "/ca"}).tls_ca == "/ca"
    with pytest.raises(OptionError, match="no option 'topic'"):
        parse_target(LEAST)


def test_names_differ_in_lower_case() -> None:
    assert len({name.lower() for name in NAMES}) == len(NAMES)
