"""Attributes of a topic on processes: they last, and administrators that change them at once lose none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from seriatim import Client, TopicSettings, sync
from seriatim_local import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]


def change_synchronously(bootstrap: Sequence[str]) -> dict[str, str]:
    with sync.Client.connect(bootstrap) as client:
        changed = client.admin().update_topic("tagged", attribute_changes={"sync": "", "owner": None})
        return dict(changed.settings.attributes)


async def test_changes_of_attributes_by_many_programs_at_once_are_all_kept(cluster: LocalCluster) -> None:
    names = [f"tool-{number}/state" for number in range(12)]
    async with Client.connect(cluster.bootstrap) as client, Client.connect(cluster.bootstrap[-1:]) as other:
        made = await client.admin().create_topic("tagged", settings=TopicSettings(attributes={"owner": "payments"}))
        assert made.settings.attributes == {"owner": "payments"}
        async with client.producer("tagged") as producer:
            works = [
                (client, other)[number % 2].admin().update_topic("tagged", attribute_changes={name: "\u00fc\n"})
                for number, name in enumerate(names)
            ]
            await asyncio.gather(*works)
            await (await producer.send(b"x"))  # the producer does not notice
        kept = await asyncio.to_thread(change_synchronously, cluster.bootstrap)
        assert kept == {**dict.fromkeys(names, "\u00fc\n"), "sync": ""}
        await cluster.kill("brokers")
        await cluster.start_again("brokers")
        await cluster.wait_ready()
        assert (await client.admin().describe_topic("tagged")).topic.settings.attributes == kept
        (listed,) = [topic for topic in await client.admin().list_topics() if topic.name == "tagged"]
        assert listed.settings.attributes == kept
        replaced = await client.admin().update_topic("tagged", attributes={"owner": "billing"})
        assert replaced.settings.attributes == {"owner": "billing"}
        await client.admin().delete_topic("tagged")
        assert (await client.admin().create_topic("tagged")).settings.attributes == {}
