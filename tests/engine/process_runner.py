"""A runner for tests to kill: serves the fake SGLang, says "ready" (or drives a client that never ends), and waits."""

import sys
import time
from pathlib import Path

from kit.client.job import DriveJob
from kit.engine import Launch
from kit.engine.process import ProcessEngine
from kit.sglang import api


def main() -> None:
    fakes, client, folder, port, mark, driving = sys.argv[1:]
    engine = ProcessEngine(Path(sys.executable), Path(client), Path(folder, "state"), {"PYTHONPATH": fakes})
    launch = Launch(
        argv=["-m", "sglang.launch_server", "--port", port],
        env={"KIT_TEST_MARK": mark, "FAKE_CHILDREN": "3"},
        models=[],
        workloads=Path(folder),
        log=Path(folder, "server.log"),
        port=int(port),
        label="test",
    )
    with engine.serve(launch) as endpoint:
        api.wait_until_generates(endpoint, launch.log, 60)
        if driving == "drive":
            job = DriveJob(host="", port=int(port), workload=f"{mark} endless", requests=1, concurrency=1)
            for line in endpoint.drive(job):
                print(line.decode().strip(), flush=True)  # noqa: T201
        print("ready", flush=True)  # noqa: T201
        time.sleep(600)


if __name__ == "__main__":
    main()
