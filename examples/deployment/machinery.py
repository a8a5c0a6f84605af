"""A whole Flower deployment on loopback: keys, certificates, a SuperLink, SuperNodes. What the two scripts share.

On real machines each part is done where it belongs: see docs/deployment.md. Ports are free ones on 127.0.0.1.
"""

import datetime
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from feddiverse.data import open_federation
from feddiverse.flower.partition_file import write_partition

FEDERATION = "dirichlet(alpha=0.3,clients=3,samples=900,select=2):digits"
REPOSITORY = Path(__file__).resolve().parents[2]
APP_FILES = (
    "pyproject.toml",
    "src/feddiverse/flower/apps.py",
)  # the Flower app is the repository; this is enough of it
NAME = "loopback"  # what the `flwr` command calls our SuperLink
BIN = Path(sys.executable).parent

PEM = serialization.Encoding.PEM
NO_PASSWORD = serialization.NoEncryption()


class Deployment:
    """Everything lies in `folder`: `ca.pem` for all, `server/` for the SuperLink, `node-K/` for each SuperNode,
    `app/` for who starts runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self._mark = secrets.token_hex(8)  # in the environment of every process we start, and of those they start
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "server").mkdir(parents=True)
        for file in APP_FILES:
            (folder / "app" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, folder / "app" / file)
        (folder / "server/config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n'
            f'[superlink.{NAME}]\naddress = "{self.address}"\nroot-certificates = "{folder / "ca.pem"}"\n'
        )

    # Keys and data -------------------------------------------------------------------------------------------------

    def make_certificates(self) -> None:
        """A certificate authority, and the SuperLink's certificate signed by it."""
        ca_key, ca_name = ec.generate_private_key(ec.SECP384R1()), name("feddiverse example CA")
        ca = certificate(ca_name, ca_key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        ca = ca.add_extension(usage, critical=True).issuer_name(ca_name)
        (self.folder / "ca.pem").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(PEM))

        key = ec.generate_private_key(ec.SECP384R1())
        where = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        )
        server = certificate(name("localhost"), key.public_key()).add_extension(where, critical=False)
        signed = server.issuer_name(ca_name).sign(ca_key, hashes.SHA256())
        (self.folder / "server/server.pem").write_bytes(signed.public_bytes(PEM))
        write_key(self.folder / "server/server.key", key, serialization.PrivateFormat.TraditionalOpenSSL)

    def make_node(self, k: int) -> None:
        """A folder with the node's own key and its own partition of the data, and nothing else."""
        folder = self.folder / f"node-{k}"
        folder.mkdir()
        self.make_key(f"node-{k}/key")
        write_partition(folder / "data.safetensors", open_federation(FEDERATION, seed=0), k)

    def make_key(self, name: str) -> Path:
        """What `ssh-keygen -t ecdsa -b 384` would make: the file `name`, and the public key beside it."""
        path, key = self.folder / name, ec.generate_private_key(ec.SECP384R1())
        write_key(path, key, serialization.PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        path.with_suffix(".pub").write_bytes(public)
        return path

    # Processes -----------------------------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        server = self.folder / "server"
        self._start(
            "superlink", server,
            "flower-superlink", "--host", "127.0.0.1", "--port", self.address.rpartition(":")[2],
            "--ssl-ca-certfile", self.folder / "ca.pem",
            "--ssl-certfile", server / "server.pem", "--ssl-keyfile", server / "server.key",
            "--enable-supernode-auth", "--database", server / "state.db", "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait_for(lambda: can_connect(self.address), 60, "the SuperLink to listen")

    def register(self, k: int) -> None:
        """Tell the SuperLink the node's public key: nodes with other keys are refused."""
        self.flwr("supernode", "register", self.folder / f"node-{k}/key.pub", NAME, "--name", f"node-{k}")

    def start_node(self, k: int) -> None:
        folder = self.folder / f"node-{k}"
        config = f'partition-id={k} num-partitions=3 partition-file="{folder / "data.safetensors"}"'
        trusted = ("--root-certificates", self.folder / "ca.pem", "--auth-supernode-private-key", folder / "key")
        self._supernode(f"node-{k}", folder, *trusted, "--node-config", config)

    def start_intruder(self, kind: str, *options: Any) -> None:
        """A node that should be refused."""
        folder = self.folder / kind
        folder.mkdir()
        self._supernode(kind, folder, *options, "--max-retries", "2", "--node-config", "partition-id=0")

    def _supernode(self, name: str, folder: Path, *options: Any) -> None:
        here = ("--host", "127.0.0.1", "--port", str(free_port()))
        self._start(name, folder, "flower-supernode", "--superlink", self.address, *here, *options)

    def kill_node(self, k: int) -> None:
        """As a power cut would: at once, with whatever it was computing."""
        os.killpg(self._processes.pop(f"node-{k}").pid, signal.SIGKILL)

    def is_running(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def log_of(self, name: str) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", (self.folder / f"{name}.log").read_text(errors="replace"))

    def nodes_online(self) -> list[str]:
        listed = json.loads(self.flwr("supernode", "list", NAME, "--format", "json"))
        return [node["node-id"] for node in listed["nodes"] if node["status"] == "online"]

    def run(self, **settings: Any) -> Iterator[dict[str, Any]]:
        """`flwr run` with these keys of the run config; then each round's record as soon as it is written."""
        out = self.folder / "run"
        given = {"federation": FEDERATION, "min_clients": 3, "out": str(out), **settings}
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
        self.flwr("run", self.folder / "app", NAME, "--run-config", pairs)
        done = 0
        while done < given["rounds"]:
            wait_for(lambda done=done: len(lines_of(out / "rounds.jsonl")) > done, 900, f"round {done + 1}")
            yield json.loads(lines_of(out / "rounds.jsonl")[done])
            done += 1
        wait_for((out / "result.json").exists, 60, "the result")

    def flwr(self, *arguments: Any) -> str:
        command = [BIN / "flwr", *map(str, arguments)]
        done = subprocess.run(
            command, env=self._environment(self.folder / "server"), capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _start(self, name: str, folder: Path, program: str, *arguments: Any) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [BIN / program, *map(str, arguments)], cwd=folder, env=self._environment(folder),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _environment(self, home: Path) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds between looks for work; Flower's own: 1
            "OMP_NUM_THREADS": "1",
            "FEDDIVERSE_DEPLOYMENT": self._mark,
        }

    def shut_down(self) -> int:
        """End every process we started, and those they started; returns how many were left (none, we hope)."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + 20
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        wait_for(lambda: not self._kill_who_is_left(), 10, "processes to end")
        return len(self._mine())

    def _kill_who_is_left(self) -> list[int]:
        """Children of what was ended, and theirs, which may be born while we look."""
        found = self._mine()
        for process_id in found:
            with suppress(ProcessLookupError):  # it ended by itself since we looked
                os.kill(process_id, signal.SIGKILL)
        return found

    def _mine(self) -> list[int]:
        marked = f"FEDDIVERSE_DEPLOYMENT={self._mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if marked in (entry / "environ").read_bytes() and "Z" not in (entry / "stat").read_text().split()[2]:
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile, or not ours to read
                continue
        return found


@contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """A SuperLink and three registered SuperNodes, all gone at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what follows is undone then, too
    made = Deployment(folder)
    try:
        say("making a CA, a server certificate, and a key and a partition file for each of three nodes")
        made.make_certificates()
        for k in range(3):
            made.make_node(k)
        say(f"starting a SuperLink with TLS and SuperNode authentication on {made.address}")
        made.start_superlink()
        say("registering and starting three SuperNodes")
        for k in range(3):
            made.register(k)
            made.start_node(k)
        wait_for(lambda: len(made.nodes_online()) == 3, 90, "three SuperNodes to connect")
        yield made
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        raise
    finally:
        left = made.shut_down()
        say(f"all processes are gone ({left} left)")


def certificate(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=7))
    )


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, style: serialization.PrivateFormat) -> None:
    """For its owner's eyes only, from the first byte."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(PEM, style, NO_PASSWORD))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0


def wait_for(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.3)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def tell(record: dict[str, Any]) -> None:
    failed = f", lost {record['failed']}" if record["failed"] else ""
    say(f"round {record['round']}: {record['phase']} {record['selected']}{failed}, {record['seconds']:.0f} s")


def say(line: str) -> None:
    print(f"· {line}", flush=True)
