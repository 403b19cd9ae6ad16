"""Servers in containers of the pinned image: the one home of the Docker SDK, whose errors are translated here.

Knows nothing of what SGLang prints, nor how the image is made (`kit/image.py`).

    private network, no way out ── client container, on cores of its own
                                     └─ server container (card, models read-only) in the client's network namespace
"""

import os
import re
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import msgspec
import requests
import urllib3
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig

from kit import image as images
from kit.client.call import CallResult
from kit.client.job import DriveJob
from kit.engine import Launch, Reply, owner
from kit.engine.process import split_cores
from kit.errors import EngineLost, KitError, UnusableInput
from kit.image import KIT
from kit.scenario import Image

Client = docker.DockerClient
"""A connection to the daemon, for the places that may not import the SDK."""

OWNER = f"{KIT}.owner"
"""On everything that a run starts: which process it belongs to (JSON of `owner.Owner`)."""
RUN = f"{KIT}.run"
"""On everything that a run starts: the run's label."""
START = f"{KIT}.start"
"""On everything that one `serve` starts: a value of its own."""

SHM_SIZE = "32g"  # what SGLang's documentation gives its container; a limit, not an allocation
MODELS, WORKLOADS = "/models", "/workloads"
CLIENT_PATH = "/opt/kit:/opt/kit/lib"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
NO_TOOLKIT = (
    "Docker cannot hand a GPU to containers: install the NVIDIA Container Toolkit,"
    " run `nvidia-ctk runtime configure --runtime=docker` and restart Docker"
)
STDOUT = 1
DAEMON_ERRORS = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


class DockerEngine:
    """Runs servers on this machine's Docker Engine. `gpus` are the cards' indexes; none of them, no card.

    `image` is the scenario's pinned image, from which `invoke build` made the one that runs.
    """

    name = "docker"

    def __init__(self, image: Image, *, allow_unpinned: bool = False, gpus: list[int] | None = None) -> None:
        self._image, self._allow_unpinned, self._gpus = image, allow_unpinned, gpus or None
        self._image_id = images.built_name(image)  # until `check` has looked: by its id no later build gets between
        self.server_cores, self.client_cores = split_cores(sorted(os.sched_getaffinity(0)))

    def check(self, port: int) -> dict[str, str]:
        """Daemon, card, pin and image, in this order; raises UnusableInput. No port of this machine is used."""
        with connected() as client:
            if self._gpus is not None:
                probe_gpu(client, self._gpus)
            facts = image_facts(client, self._image, self._allow_unpinned)
            self._image_id = facts["image_id"]
            return {"docker": client.version()["Version"], **facts}

    @contextmanager
    def serve(self, launch: Launch) -> Iterator["DockerEndpoint"]:
        """Starts server and client containers; leaving removes them, their network and their volumes.

        Raises UnusableInput when Docker refuses to start them, EngineLost when the daemon goes away.
        """
        with connected() as client:
            start = _Start(client, launch, self._image_id, self._gpus, (self.server_cores, self.client_cores))
            try:
                yield start.endpoint()
            except BaseException:
                with suppress(EngineLost):  # the daemon that is gone is what the first error says already
                    start.remove()
                raise
            start.remove()

    def clean(self) -> list[str]:
        """Removes what dead runs of this kit left; what a living run owns is never touched."""
        with connected() as client, translated("removing leftovers", UnusableInput):
            return _remove(client, {"label": OWNER}, _is_left_over)


class DockerEndpoint:
    """A server in a container, spoken to by the client container beside it, with which it shares its network."""

    def __init__(self, client: Client, server: Container, beside: Container, launch: Launch, cores: list[int]) -> None:
        self._client, self._server, self._beside, self._launch, self._cores = client, server, beside, launch, cores

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0) -> Reply:
        """One control request by `kit.client call`. Status 0: nothing answered. Raises EngineLost."""
        where = ["--host", "127.0.0.1", "--port", str(self._launch.port), "--timeout", str(timeout_s)]
        lines = list(self._run(["call", method, path, *where], body or b"", f"{method} {path} was asked"))
        answer = msgspec.json.decode(lines[-1], type=CallResult)
        return Reply(answer.status, answer.body.encode())

    def drive(self, job: DriveJob) -> Iterator[bytes]:
        """Runs `kit.client drive` and yields its lines; host, workload and cores are set as its container has them."""
        workload = Path(job.workload).resolve().relative_to(self._launch.workloads.resolve())
        here = {"host": "127.0.0.1", "port": self._launch.port, "cores": self._cores}
        job = msgspec.structs.replace(job, **here, workload=f"{WORKLOADS}/{workload}")
        yield from self._run(["drive"], msgspec.json.encode(job), "a trial ran")

    def exit_code(self) -> int | None:
        """None while the server lives. Raises EngineLost."""
        with translated("the server ran"):
            self._server.reload()
            state = self._server.attrs["State"]
            return None if state["Running"] else int(state["ExitCode"])

    def _run(self, argv: list[str], stdin: bytes, doing: str) -> Iterator[bytes]:
        """Lines of a run of the client; when it is given up early, the client is ended with its container."""
        ended = False
        try:
            with translated(doing):
                run = self._client.api.exec_create(
                    self._beside.id, ["python3", "-m", "kit.client", *argv], stdin=True, stdout=True, stderr=True
                )["Id"]
                yield from self._lines(run, stdin, doing)
            ended = True
        finally:
            if not ended:
                with suppress(EngineLost), translated(doing):
                    self._beside.kill()  # an exec cannot be ended by itself

    def _lines(self, run: str, stdin: bytes, doing: str) -> Iterator[bytes]:
        rest, said = b"", b""
        with _attached(self._client, run) as line:
            line.sendall(stdin)
            line.shutdown(socket.SHUT_WR)
            for number, data in _frames(line):
                if number != STDOUT:
                    said = (said + data)[-2000:]
                    continue
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
        code = self._client.api.exec_inspect(run)["ExitCode"]
        if code != 0:
            why = said.decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
            raise EngineLost(f"the client ended with code {code} while {doing}: {why}")


class _Start:
    """The network and the two containers of one `serve`, and their removal."""

    def __init__(
        self, client: Client, launch: Launch, image: str, gpus: list[int] | None, cores: tuple[list[int], list[int]]
    ) -> None:
        self._client, self._launch, self._gpus = client, launch, gpus
        self._id = uuid.uuid4().hex[:12]
        self._image = image
        self._log: _LogCopy | None = None
        self._cores = cores

    def endpoint(self) -> DockerEndpoint:
        with translated("starting the server"):
            network = self._client.networks.create(self._name("network"), **self._network())
            beside = self._client.containers.create(self._image, network=network.name, **self._beside())
            beside.start()
            # The client's is the namespace that both share: a server may be dead before anything could join it.
            shared = f"container:{beside.id}"
            server = self._client.containers.create(self._image, network_mode=shared, **self._server())
            server.start()
            self._log = _LogCopy(server.id or "", self._launch.log)
        return DockerEndpoint(self._client, server, beside, self._launch, self._cores[1])

    def remove(self) -> None:
        """Ends and removes everything that carries this start's mark; the log is whole afterwards."""
        with translated("ending the server"):
            mark: dict[str, str | list[str] | bool] = {"label": f"{START}={self._id}"}
            for container in self._client.containers.list(filters=mark):
                with suppress(docker.errors.APIError):  # it ended by itself
                    container.kill()
            if self._log:
                self._log.finish()
            _remove(self._client, mark, lambda labels: True)

    def _name(self, part: str) -> str:
        label = re.sub(r"[^a-zA-Z0-9_.-]+", "-", self._launch.label)
        return f"{KIT}-{label}-{self._id}-{part}"

    def _labels(self) -> dict[str, str]:
        mine = msgspec.json.encode(owner.me()).decode()
        return {OWNER: mine, RUN: self._launch.label, START: self._id}

    def _network(self) -> dict[str, Any]:
        """Internal, and without an address of this machine on it: not even the host can be reached from it."""
        options = {"com.docker.network.bridge.inhibit_ipv4": "true"}
        return {"driver": "bridge", "internal": True, "options": options, "labels": self._labels()}

    def _server(self) -> dict[str, Any]:
        mounts, places = model_mounts(self._launch.models)
        return {
            "command": ["python3", *(in_container(a, places) for a in self._launch.argv)],
            "environment": {**OFFLINE, **{k: in_container(v, places) for k, v in self._launch.env.items()}},
            "volumes": {folder: {"bind": place, "mode": "ro"} for folder, place in mounts.items()},
            "device_requests": _card_requests(self._gpus),
            "shm_size": SHM_SIZE,
            "cpuset_cpus": _cpuset(self._cores[0]),
            **self._both("server"),
        }

    def _beside(self) -> dict[str, Any]:
        return {
            "command": ["sleep", "infinity"],
            "environment": {"PYTHONPATH": CLIENT_PATH, "PYTHONDONTWRITEBYTECODE": "1"},
            "volumes": {str(self._launch.workloads.resolve()): {"bind": WORKLOADS, "mode": "ro"}},
            "user": _caller(self._client),
            "cap_drop": ["ALL"],
            "read_only": True,
            "cpuset_cpus": _cpuset(self._cores[1]),
            **self._both("client"),
        }

    def _both(self, part: str) -> dict[str, Any]:
        return {
            "name": self._name(part),
            "labels": self._labels(),
            "init": True,
            "use_config_proxy": False,  # the caller's proxy is none of theirs: they talk to each other alone
            "security_opt": ["no-new-privileges"],
            "log_config": LogConfig(type="json-file"),  # whatever the daemon's default is, the log must be readable
        }


class _LogCopy:
    """Copies a container's output to a file while it is printed, on a connection of its own."""

    def __init__(self, container: str, path: Path) -> None:
        self._container, self._path = container, path
        self._thread = threading.Thread(target=self._copy, name="server log", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits until the output of the ended container is in the file."""
        self._thread.join(timeout=30)

    def _copy(self) -> None:
        with (
            suppress(KitError),
            connected() as client,
            translated("copying the log"),
            closing(client.api.logs(self._container, stream=True, follow=True)) as pieces,
            self._path.open("ab") as file,
        ):
            for piece in pieces:
                file.write(piece)
                file.flush()


# ---- daemon ---------------------------------------------------------------------------------------------------------


@contextmanager
def connected() -> Iterator[Client]:
    """A connection to this machine's daemon; raises UnusableInput when there is none or when it is elsewhere."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        raise UnusableInput(
            f"DOCKER_HOST={address}: a Docker daemon elsewhere is refused, since the card that is read and locked"
            " would be this machine's and not the one that serves; run the kit on that machine"
        )
    client = _connect(address)
    try:
        yield client
    finally:
        client.close()


def _connect(address: str) -> Client:
    try:
        return docker.DockerClient(base_url=address)
    except DAEMON_ERRORS as error:
        if "Permission denied" in str(error):
            raise UnusableInput(
                f"no permission to use Docker at {address}: add yourself to the group `docker` and log in again"
            ) from None
        raise UnusableInput(
            f"no Docker daemon answers at {address}: start it (`sudo systemctl start docker`),"
            " let DOCKER_HOST name its unix:// socket, or take `--engine process`"
        ) from None


@contextmanager
def translated(doing: str, lost: type[KitError] = EngineLost) -> Iterator[None]:
    """Turns every error of the SDK and its sockets into one line of ours; `lost` when the daemon has gone away."""
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise UnusableInput(f"image not on this machine: {_said(error)}; `invoke build` makes it") from None
    except docker.errors.APIError as error:
        said = _said(error)
        if "could not select device driver" in said:
            raise UnusableInput(NO_TOOLKIT) from None
        if "is not running" in said:  # a daemon that is told to stop ends its containers before it goes
            raise lost(_went_away(doing, "it stopped the kit's container")) from None
        raise lost(f"Docker refused while {doing}: {said}") from None
    except DAEMON_ERRORS as error:
        raise lost(_went_away(doing, type(error).__name__)) from None


def _went_away(doing: str, how: str) -> str:
    return (
        f"the Docker daemon went away while {doing} ({how}): start it and give the same command again;"
        " what was measured is kept"
    )


def _said(error: docker.errors.APIError) -> str:
    return str(error.explanation or error).strip().replace("\n", " ")


def describe(client: Client) -> str:
    """The daemon in a few words."""
    with translated("asking the daemon", UnusableInput):
        info = client.info()
    return f"{info['ServerVersion']} on {info['OperatingSystem']}, {info['NCPU']} cores"


def data_folder(client: Client) -> str:
    """Where the daemon keeps its images on this machine."""
    with translated("asking the daemon", UnusableInput):
        return str(client.info()["DockerRootDir"])


def probe_gpu(client: Client, gpus: list[int]) -> None:
    """Asks the daemon for the cards with an empty image made on the spot: nothing is downloaded for the answer.

    Raises UnusableInput with the way out when there is no device driver, or no such card.
    """
    with translated("asking for the GPU", UnusableInput), _empty_image(client) as image:
        container = client.containers.create(
            image, ["/none"], device_requests=_card_requests(gpus), network_mode="none", labels=_own_labels("probe")
        )
        try:
            container.start()
        except docker.errors.APIError as error:
            if not _is_missing_program(_said(error)):
                raise
        finally:
            container.remove(force=True, v=True)


def _is_missing_program(said: str) -> bool:
    """The empty image holds no program: this error means that the cards had been handed over by then."""
    return "/none" in said and ("no such file" in said or "not found" in said)


def find_image(client: Client, ref: str) -> dict[str, Any] | None:
    """An image's facts as the daemon tells them, None when this machine does not have it."""
    try:
        return dict(client.images.get(ref).attrs)
    except docker.errors.ImageNotFound:
        return None


def run_once(client: Client, image: str, argv: list[str]) -> str:
    """What a program in a container of the image prints; no network, no card. Raises UnusableInput when it fails."""
    container = client.containers.create(
        image, argv, network_mode="none", labels=_own_labels("look"), log_config=LogConfig(type="json-file")
    )
    try:
        container.start()
        code = container.wait()["StatusCode"]
        said = container.logs(stdout=code == 0, stderr=code != 0).decode(errors="replace")
    finally:
        container.remove(force=True, v=True)
    if code:
        last = said.strip().rpartition("\n")[2]
        raise UnusableInput(f"image {image}: `{argv[0]}` ended with code {code}: {last}")
    return said


@contextmanager
def _empty_image(client: Client) -> Iterator[str]:
    name = f"{KIT}-probe-{uuid.uuid4().hex[:12]}"
    client.api.import_image_from_data(bytes(1024), repository=name)  # a tar file without members
    try:
        yield name
    finally:
        client.images.remove(name, force=True)


def image_facts(client: Client, image: Image, allow_unpinned: bool) -> dict[str, str]:
    """Facts of the built image, by names that begin with `image`.

    Raises UnusableInput when it is not pinned, not built, or built from something else than is asked for now.
    """
    images.require_pin(image, allow_unpinned)
    name = images.built_name(image)
    with translated("looking for the image", UnusableInput):
        found = find_image(client, name)
    if found is None:
        raise UnusableInput(f"image {name} is not on this machine; `invoke build` makes it from {image.ref}")
    labels = found["Config"]["Labels"] or {}
    if labels.get(images.CONTEXT) != images.fingerprint():
        raise UnusableInput(f"image {name} holds another version of the kit's client; `invoke build` makes it anew")
    base = labels.get(images.BASE, "")
    pinned = images.is_made_from(image, base)
    if not pinned and not allow_unpinned:
        raise UnusableInput(
            f"image {name} was built from {base} and not from the pinned {image.ref}; `invoke build` without --base"
            " makes it anew, or pass --allow-unpinned, and every report will say so"
        )
    return {
        "image": name,
        "image_id": found["Id"],
        "image_base": base,
        "image_sglang": labels.get(images.SGLANG, ""),
        "image_pinned": "yes" if pinned else "no",
        "image_architecture": found["Architecture"],
    }


def _own_labels(run: str) -> dict[str, str]:
    return {OWNER: msgspec.json.encode(owner.me()).decode(), RUN: run}


def _is_left_over(labels: dict[str, str]) -> bool:
    """Whether the owner is dead; what cannot be read or judged is left alone."""
    try:
        known = msgspec.json.decode(labels[OWNER], type=owner.Owner)
    except (KeyError, msgspec.DecodeError):
        return False
    return owner.state(known) == "dead"


def _remove(
    client: Client, filters: dict[str, str | list[str] | bool], wanted: Callable[[dict[str, str]], bool]
) -> list[str]:
    """Removes containers with their volumes, then networks and volumes; returns what it removed, in words."""
    removed = []
    for container in client.containers.list(all=True, filters=filters, ignore_removed=True):
        if wanted(container.labels):
            with _may_be_gone():
                container.remove(force=True, v=True)
            removed.append(f"container {container.name}")
    for network in client.networks.list(filters=filters):
        if wanted(network.attrs["Labels"]):
            with _may_be_gone():
                network.remove()
            removed.append(f"network {network.name}")
    for volume in client.volumes.list(filters=filters):
        if wanted(volume.attrs["Labels"]):
            with _may_be_gone():
                volume.remove(force=True)
            removed.append(f"volume {volume.name}")
    return removed


@contextmanager
def _may_be_gone() -> Iterator[None]:
    """Another runner may clean at the same time: what it took away is gone, which was the aim."""
    try:
        yield
    except docker.errors.NotFound:
        pass
    except docker.errors.APIError as error:
        if "already in progress" not in _said(error):
            raise


@contextmanager
def _attached(client: Client, run: str) -> Iterator[socket.socket]:
    """The two-way line to an exec's standard streams; its halves can be ended one by one, and no read times out."""
    stream: Any = client.api.exec_start(run, socket=True)
    try:
        with socket.socket(fileno=os.dup(stream.fileno())) as line:
            line.settimeout(None)
            yield line
    finally:
        stream._sock.close()  # the SDK hands out the reader alone, which does not close the socket below it
        stream.close()


def _frames(line: socket.socket) -> Iterator[tuple[int, bytes]]:
    """(1 for standard output or 2 for errors, bytes), as the Engine API puts both on one line; ends with the line."""
    with line.makefile("rb") as stream:
        while len(header := stream.read(8)) == 8:
            number, size = struct.unpack(">BxxxL", header)
            yield number, stream.read(size)


# ---- what a container is given --------------------------------------------------------------------------------------


def model_mounts(folders: list[Path]) -> tuple[dict[str, str], dict[Path, str]]:
    """What is mounted where (folders of this machine to places in the container), and where each model then lies.

    A folder of links, as the hub's own cache makes them, is mounted together with what they point to. Raises
    UnusableInput when that would be the whole machine.
    """
    mounts: dict[str, str] = {}
    places: dict[Path, str] = {}
    for number, folder in enumerate(dict.fromkeys(folders)):
        here = folder.resolve()
        root = Path(os.path.commonpath([here, *(p.resolve() for p in here.rglob("*") if p.is_symlink())]))
        if root == Path(root.anchor):
            raise UnusableInput(
                f"model {folder.name}: its links lead far away; copy the files behind them into one folder"
            )
        mount = mounts.setdefault(str(root), f"{MODELS}/{number}-{root.name}")
        places[folder] = str(Path(mount) / here.relative_to(root))
    return mounts, places


def in_container(text: str, places: dict[Path, str]) -> str:
    """An argument with a model's folder, or a path below it, as the container has it."""
    for folder, place in places.items():
        if text == str(folder) or text.startswith(f"{folder}/"):
            return place + text.removeprefix(str(folder))
    return text


def _card_requests(gpus: list[int] | None) -> list[DeviceRequest]:
    if gpus is None:
        return []
    return [DeviceRequest(device_ids=[str(index) for index in gpus], capabilities=[["gpu"]])]


def _cpuset(cores: list[int]) -> str | None:
    return ",".join(str(core) for core in cores) or None


def _caller(client: Client) -> str:
    """The client reads the caller's workloads as the caller. A rootless daemon maps its own root to the caller."""
    rootless = any("rootless" in option for option in client.info().get("SecurityOptions") or [])
    return "0:0" if rootless else f"{os.getuid()}:{os.getgid()}"
