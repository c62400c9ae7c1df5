"""Downloads: checked at every step, bounded in bytes and time, quiet about addresses."""

import datetime
import logging
import ssl

import pytest

from penstock.media import MediaError, MediaSource
from tests.support.media_server import serving

pytestmark = pytest.mark.real_time


@pytest.fixture
def server():
    with serving() as server:
        yield server


class Names:
    """A resolver that remembers what it was asked."""

    def __init__(self, **addresses):
        self.addresses = {name.replace("_", "."): found for name, found in addresses.items()}
        self.asked = []

    async def __call__(self, host, port):
        self.asked.append(host)
        found = self.addresses[host]
        return [found] if isinstance(found, str) else found


def source_for(server, **options):
    names = options.pop("names", None) or Names(media_test="127.0.0.1", other_test="127.0.0.1")
    return MediaSource(
        hosts={f"media.test:{server.port}", f"other.test:{server.port}"},
        **{"allow_loopback": True, "allow_http": True, "timeout": 10, "resolver": names, **options},
    )


async def read(source, url):
    async with source.open(url) as path:
        return path.read_bytes()


async def error_of(source, url):
    with pytest.raises(MediaError) as caught:
        await read(source, url)
    return caught.value


async def test_a_download_is_a_file_until_the_block_ends(server):
    server.answers["/a.wav"] = (200, {}, b"sound" * 1000)
    url = f"http://media.test:{server.port}/a.wav?x=1#part"
    async with source_for(server).open(url) as path:
        assert path.read_bytes() == b"sound" * 1000
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()
    (target, headers), *_ = server.requests
    assert target == "/a.wav?x=1"
    assert headers["Host"] == f"media.test:{server.port}"


async def test_the_connection_goes_to_the_address_that_was_checked(server):
    """A second look-up could give another address: there is none."""
    server.answers["/a"] = (200, {}, b"sound")
    names = Names(media_test="127.0.0.1")
    await read(source_for(server, names=names), f"http://media.test:{server.port}/a")
    assert names.asked == ["media.test"]


async def test_loopback_is_refused_unless_allowed(server):
    source = source_for(server, allow_loopback=False)
    error = await error_of(source, f"http://media.test:{server.port}/a")
    assert (error.reason, error.permanent, server.requests) == ("forbidden", True, [])


async def test_the_next_address_is_tried_when_one_does_not_answer(server):
    server.answers["/a"] = (200, {}, b"sound")
    names = Names(media_test=["127.0.0.9", "127.0.0.1"])
    assert await read(source_for(server, names=names), f"http://media.test:{server.port}/a")


async def test_an_address_of_the_new_kind_is_reached():
    with serving(address="::1") as server:
        server.answers["/a"] = (200, {}, b"sound")
        names = Names(media_test="::1")
        url = f"http://media.test:{server.port}/a"
        assert await read(source_for(server, names=names), url) == b"sound"


async def test_redirects_are_followed_and_checked_again(server):
    there = f"http://other.test:{server.port}/b"
    server.answers["/a"] = (302, {"Location": there}, b"")
    server.answers["/b"] = (307, {"Location": "/c"}, b"")
    server.answers["/c"] = (200, {}, b"sound")
    names = Names(media_test="127.0.0.1", other_test="127.0.0.1")
    url = f"http://media.test:{server.port}/a"
    assert await read(source_for(server, names=names), url) == b"sound"
    assert names.asked == ["media.test", "other.test", "other.test"]


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/",
        "http://[::ffff:127.0.0.1]/",
        "file:///etc/passwd",
        "ftp://media.test/",
        "//evil.test/",
        "http://user@media.test/",
        "http://media.test:1/",
    ],
)
async def test_a_redirect_to_elsewhere_is_refused(server, target):
    server.answers["/a"] = (302, {"Location": target}, b"")
    error = await error_of(source_for(server), f"http://media.test:{server.port}/a")
    assert error.reason in ("forbidden", "bad_reference")
    assert len(server.requests) == 1


async def test_a_redirect_to_a_listed_name_that_turned_private_is_refused(server):
    there = f"http://other.test:{server.port}/b"
    server.answers["/a"] = (302, {"Location": there}, b"")
    server.answers["/b"] = (200, {}, b"secret")
    names = Names(media_test="127.0.0.1", other_test="10.0.0.1")
    url = f"http://media.test:{server.port}/a"
    assert (await error_of(source_for(server, names=names), url)).reason == "forbidden"
    assert [path for path, _ in server.requests] == ["/a"]


async def test_redirects_without_end_are_given_up(server):
    server.answers["/a"] = (302, {"Location": "/a"}, b"")
    error = await error_of(source_for(server), f"http://media.test:{server.port}/a")
    assert (error.reason, len(server.requests)) == ("forbidden", 6)


async def test_a_body_larger_than_said_or_allowed_is_cut_off(server):
    server.answers["/a"] = (200, {}, b"x" * 1001)
    source = source_for(server, max_bytes=1000)
    for path in ("a", "endless"):
        error = await error_of(source, f"http://media.test:{server.port}/{path}")
        assert (error.reason, error.permanent) == ("too_large", True)


@pytest.mark.parametrize("path", ["slow", "hang"])
async def test_a_slow_body_ends_at_the_deadline(server, path):
    source = source_for(server, timeout=0.5)
    error = await error_of(source, f"http://media.test:{server.port}/{path}")
    assert (error.reason, error.retryable) == ("timeout", True)


async def test_a_body_that_ends_early_is_tried_again_later(server):
    server.answers["/a"] = (200, {"Content-Length": "5000"}, b"x" * 10)
    error = await error_of(source_for(server), f"http://media.test:{server.port}/a")
    assert (error.reason, error.retryable) == ("network", True)


async def test_compressed_bodies_are_refused(server):
    server.answers["/a"] = (200, {"Content-Encoding": "gzip"}, b"x" * 10)
    error = await error_of(source_for(server), f"http://media.test:{server.port}/a")
    assert error.reason == "unsupported"


@pytest.mark.parametrize(
    ("status", "reason", "permanent"),
    [
        (404, "not_found", True),
        (410, "not_found", True),
        (403, "forbidden", True),
        (400, "unavailable", True),
        (206, "unavailable", True),
        (429, "unavailable", False),
        (500, "unavailable", False),
        (503, "unavailable", False),
    ],
)
async def test_a_status_has_a_reason(server, status, reason, permanent):
    server.answers["/a"] = (status, {}, b"")
    error = await error_of(source_for(server), f"http://media.test:{server.port}/a")
    assert (error.reason, error.permanent) == (reason, permanent)


async def test_a_host_that_cannot_be_reached_is_tried_again_later(server):
    async def nothing(host, port):
        raise OSError("no such host")

    names = Names(media_test="127.0.0.9")
    for options in ({"names": names}, {"names": nothing}):
        error = await error_of(source_for(server, **options), f"http://media.test:{server.port}/a")
        assert (error.reason, error.retryable) == ("network", True)


async def test_addresses_are_neither_logged_nor_in_errors(server, caplog):
    caplog.set_level(logging.DEBUG)
    server.answers["/a"] = (200, {}, b"sound")
    server.answers["/gone"] = (404, {}, b"")
    for path in ("a", "gone", "slow"):
        url = f"http://media.test:{server.port}/{path}?signature=SECRET"
        try:
            await read(source_for(server, timeout=0.3), url)
        except MediaError as error:
            assert "SECRET" not in f"{error!r} {error.__cause__!r}"
    assert "SECRET" not in caplog.text


async def test_the_certificate_is_checked_against_the_name(tmp_path):
    good, trusted = certificate(tmp_path / "good", "media.test")
    with serving(good) as server:
        server.answers["/a"] = (200, {}, b"sound")
        source = source_for(server, verify=trusted, allow_http=False)
        assert await read(source, f"https://media.test:{server.port}/a") == b"sound"
        error = await error_of(source, f"https://other.test:{server.port}/a")
        assert error.reason == "network"
        untrusting = source_for(server, verify=ssl.create_default_context())
        assert (await error_of(untrusting, f"https://media.test:{server.port}/a")).retryable
        server.answers["/down"] = (302, {"Location": f"http://media.test:{server.port}/a"}, b"")
        lax = source_for(server, verify=trusted, allow_http=True)
        assert (await error_of(lax, f"https://media.test:{server.port}/down")).reason == "forbidden"


def certificate(place, name):
    """A server context for `name`, and a client context that trusts it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    place.write_bytes(private + made.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(place)
    client = ssl.create_default_context(cadata=made.public_bytes(pem).decode())
    return server, client
