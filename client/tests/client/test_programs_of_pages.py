"""Programs of the pages, as a reader runs and ends them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from seriatim import sync

from ..fake_keyed import FakeKeyed
from .test_public import fake_in_a_thread

PAGE = Path(__file__).parents[3] / "docs" / "using" / "by-key.md"


def _take_ctrl_c() -> None:
    """Take SIGINT again. A shell's background process ignores it, and so do all processes that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_first_program_about_keys_ends_at_ctrl_c_without_a_traceback(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program = tmp_path / "program.py"
    program.write_text(found[1])
    with fake_in_a_thread() as cluster, sync.Client.connect(cluster.brokers[0].address) as client:
        topic = client.admin().create_topic("orders")
        group = FakeKeyed(cluster)
        group.add(topic.partition_ids[0], [(b"order-7", b"paid")])
        command = [sys.executable, "-u", str(program), cluster.brokers[0].address]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=_take_ctrl_c) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "b'order-7' 0/1:0 b'paid'\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
