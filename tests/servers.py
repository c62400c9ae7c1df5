"""NATS servers for tests: real ones, on loopback, with whatever they need to be hard to please."""

import base64
import datetime
import hashlib
import ipaddress
import json
import os
import signal
from pathlib import Path
from typing import Any, Self

import nkeys

from penstock.brokers.nats import server


class NatsServer:
    """A server on a free loopback port, stored in `folder`. Use it with `with`."""

    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        credentials: bool = False,
        sync: bool = False,
        extra: str = "",
    ) -> None:
        self.folder = folder
        self.tls, self.credentials, self.sync, self.extra = tls, credentials, sync, extra
        self.port = -1
        self.pid = 0

    def __enter__(self) -> Self:
        (self.folder / "run").mkdir(exist_ok=True)
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
        self.pid, self.port = server.start(config, self.folder / "log", self.folder / "run")

    def kill(self) -> None:
        """As a power cut would, but for the page cache."""
        os.kill(self.pid, signal.SIGKILL)
        while server.alive(self.pid):
            pass

    def _config(self) -> str:
        parts = [
            f'listen: "127.0.0.1:{self.port}"',
            f'ports_file_dir: "{self.folder}/run"',
            'server_name: "tests"',
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
    return key.public_key.decode()


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
