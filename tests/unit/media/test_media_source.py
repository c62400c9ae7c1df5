"""References stay inside the folder and out of the private network."""

import os
import resource
from contextlib import contextmanager, suppress

import pytest

from penstock.media import MediaError, MediaSource
from penstock.media.fetching.addresses import is_allowed
from penstock.media.guard.children import Child, open_regular

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",  # noqa: S104
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::808:808",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2001:0:7f00:1::",
    "not an address",
    "",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address):
    assert is_allowed(address, allow_loopback=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address):
    assert not is_allowed(address, allow_loopback=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_allowed_when_asked_for_and_nothing_else(address):
    assert is_allowed(address, allow_loopback=True)
    assert not is_allowed("10.0.0.1", allow_loopback=True)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "shows").mkdir(parents=True)
    (root / "shows" / "one.wav").write_bytes(b"one")
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    (root / "in").symlink_to("shows/one.wav")
    (root / "round").symlink_to("round")
    os.mkfifo(root / "pipe")
    return root


async def read(source, reference):
    async with source.open(reference) as path:
        return path.read_bytes()


async def reason_of(source, reference):
    with pytest.raises(MediaError) as caught:
        await read(source, reference)
    return caught.value.reason


@pytest.mark.real_time
async def test_files_below_the_root_are_read_however_they_are_named(root):
    source = MediaSource(root)
    for reference in ("shows/one.wav", "./shows/one.wav", "file:shows/one.wav", "in"):
        assert await read(source, reference) == b"one"
    assert await read(source, f"file://{root}/shows/one.wav") == b"one"
    assert await read(source, f"file://localhost{root}/shows/%6Fne.wav") == b"one"


@pytest.mark.real_time
@pytest.mark.parametrize(
    "reference",
    [
        "../secret",
        "shows/../../secret",
        "out",
        "up/secret",
        "/etc/passwd",
        "file:///etc/passwd",
        "file:///proc/self/environ",
        "file:%2e%2e/secret",
        "/proc/self/mem",
        "/dev/zero",
        "pipe",
        "shows",
        ".",
        "round",
        "shows/one.wav/x",
        "x" * 300,
    ],
)
async def test_a_file_elsewhere_or_of_another_kind_is_refused(root, reference):
    assert await reason_of(MediaSource(root), reference) in ("forbidden", "not_found")


@pytest.mark.real_time
async def test_a_root_inside_proc_hands_out_no_devices():
    assert await reason_of(MediaSource("/dev"), "zero") == "forbidden"


@pytest.mark.real_time
@pytest.mark.parametrize(
    "reference",
    [
        "",
        "a\x00b",
        "a\nb",
        "file:a%00b",
        "x" * 3000,
        "file://host/a",
        "ftp://h/x",
        "data:,x",
        "gopher://h/",
        "javascript:x",
        chr(0xD800),
    ],
)
async def test_what_is_no_reference_is_said_to_be_none(root, reference):
    assert await reason_of(MediaSource(root), reference) == "bad_reference"


@pytest.mark.real_time
async def test_nothing_is_allowed_unless_it_is_said():
    assert await reason_of(MediaSource(), "a.wav") == "forbidden"
    assert await reason_of(MediaSource(), "https://example.com/a.wav") == "forbidden"


@pytest.mark.real_time
async def test_a_missing_file_is_not_found_and_a_large_one_too_large(root):
    assert await reason_of(MediaSource(root), "none.wav") == "not_found"
    assert await reason_of(MediaSource(root, max_bytes=2), "shows/one.wav") == "too_large"


@pytest.mark.real_time
async def test_an_open_file_stays_the_same_file_when_its_name_is_pointed_elsewhere(root, tmp_path):
    async with MediaSource(root).open("shows/one.wav") as path:
        (root / "shows" / "one.wav").unlink()
        (root / "shows" / "one.wav").symlink_to(tmp_path / "secret")
        assert path.read_bytes() == b"one"


@pytest.mark.real_time
async def test_no_descriptor_is_left_open(root):
    source = MediaSource(root)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for reference in ("shows/one.wav", "out", "pipe", "shows", "none", "round"):
        with suppress(MediaError):
            await read(source, reference)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.real_time
@pytest.mark.parametrize(
    "url",
    [
        "https://user@media.example/a",
        "https://user:word@media.example/a",
        "https://other.example/a",
        "https://media.example.evil.example/a",
        "https://media.example./a",
        "https://media.example:444/a",
        "https://media.example@evil.example/a",
        "https://127.0.0.1/a",
        "https://2130706433/a",
        "https://[::1]/a",
        "http://media.example/a",
        "https:///a",
    ],
)
async def test_an_address_that_is_not_on_the_list_is_refused_unresolved(url):
    async def resolver(host, port):
        raise AssertionError(f"{host} was looked up")

    source = MediaSource(hosts={"media.example"}, resolver=resolver)
    assert await reason_of(source, url) in ("forbidden", "bad_reference")


@pytest.mark.real_time
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_a_listed_name_with_a_private_address_is_refused(address):
    async def resolver(host, port):
        return ["93.184.216.34", address]

    source = MediaSource(hosts={"media.example"}, resolver=resolver)
    assert await reason_of(source, "https://media.example/a") == "forbidden"


@contextmanager
def no_room_for_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.open(os.devnull, os.O_RDONLY)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_more_files_can_be_opened_nothing_is_wrong_with_the_media(tmp_path):
    source = MediaSource(tmp_path)
    (tmp_path / "good.mp3").write_bytes(b"good")
    for way in (
        lambda: source._open_file("good.mp3"),
        lambda: open_regular(tmp_path / "good.mp3"),
        Child,
    ):
        with no_room_for_files(), pytest.raises(MediaError) as caught:
            way()
        assert (caught.value.reason, caught.value.permanent) == ("guard_unavailable", False)
