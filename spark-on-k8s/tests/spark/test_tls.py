"""Certificates by path: those of the cluster's authority are taken, others are refused with one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from seriatim import Tls, sync

from .conftest import Brokers
from .filling import Filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_certificates_are_taken_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    brokers = Brokers(tmp_path / "cluster", tls=True)
    try:
        files = brokers.client_files
        with sync.Client.connect(
            brokers.bootstrap, tls=Tls(files["tlsCa"], files["tlsCert"], files["tlsKey"])
        ) as client:
            topic = Filled(client, brokers.bootstrap, "secret")
            topic.send([300])

        def count(**options: str) -> int:
            given = {**topic.options, "readTimeout": "2s", **options}
            return int(spark.read.format("seriatim").options(**given).load().count())

        def write(**options: str) -> None:
            rows = spark.range(3).selectExpr("cast(id as string) as value")
            given = {**topic.options, "writeTimeout": "2s", **options}
            rows.write.format("seriatim").mode("append").options(**given).save()

        write(**files)
        assert count(**files) == 303
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(other))
        for wrong in ({}, files | {"tlsCa": str(other)}, {"tlsCa": files["tlsCa"]}):
            with pytest.raises(Exception, match="ClusterError") as refused:
                count(**wrong)
            assert "BEGIN" not in str(refused.value)
            with pytest.raises(Exception, match="ClusterError"):
                write(**wrong)
        assert count(**files) == 303
        key = Path(files["tlsKey"]).read_text()
        with pytest.raises(Exception, match="the path of a file") as refused:
            count(**(files | {"tlsKey": key}))
        assert key.splitlines()[1] not in str(refused.value)
    finally:
        brokers.close()
