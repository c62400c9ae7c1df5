"""Settings: defaults, then a file, then the environment, then arguments."""

import pytest

from penstock.errors import InvalidArgumentError
from penstock.jobs import JobStage, MediaType, load_settings
from penstock.media.reading.documents import CHARACTERS, MOST_CHARACTERS, MOST_PAGES, PAGES


def test_req_4_1_names_have_sane_defaults():
    settings = load_settings(environ={})
    assert settings.topics.processing == "job-processing"
    assert settings.topics.events == "job-events"
    assert settings.stages.metadata.dead_letters("job-processing") == "job-processing-dead"
    assert settings.stages.metadata.filter == f'attributes.stage = "{JobStage.QUEUED}"'
    assert settings.api.host == "127.0.0.1"


def test_req_2_8_each_layer_wins_over_the_one_below(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text(
        'url = "nats://file"\ndatabase = "sqlite:///file.db"\n'
        "[stages.metadata]\nconcurrency = 2\nmax_attempts = 9\n"
    )
    environ = {
        "PENSTOCK_DATABASE": "sqlite:///environment.db",
        "PENSTOCK_STAGES__METADATA__CONCURRENCY": "3",
        "HOME": "/nowhere",
    }
    settings = load_settings(file, environ, stages={"metadata": {"concurrency": 4}}, url=None)
    assert settings.url == "nats://file"
    assert settings.database == "sqlite:///environment.db"
    assert settings.stages.metadata.concurrency == 4
    assert settings.stages.metadata.max_attempts == 9
    assert settings.stages.transcription.max_attempts == 5


def test_the_environment_may_name_the_file(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text('url = "nats://file"\n')
    assert load_settings(environ={"PENSTOCK_CONFIG": str(file)}).url == "nats://file"


def test_lists_and_tables_in_the_environment_are_json():
    environ = {
        "PENSTOCK_MEDIA__HOSTS": '["media.example.org"]',
        "PENSTOCK_API__TOKENS": '{"secret-secret-secret": "user-1"}',
    }
    settings = load_settings(environ=environ)
    assert settings.media.hosts == ("media.example.org",)
    assert settings.api.tokens == {"secret-secret-secret": "user-1"}


def test_req_4_1_a_media_type_may_have_a_topic_of_its_own():
    settings = load_settings(environ={}, topics={"media": {"video": "video-processing"}})
    assert settings.topics.of(MediaType.VIDEO) == "video-processing"
    assert settings.topics.of(MediaType.AUDIO) == "job-processing"
    assert settings.topics.work == ("job-processing", "video-processing")


def test_req_4_3_a_stage_may_have_dead_letters_of_its_own():
    settings = load_settings(
        environ={}, stages={"transcription": {"dead_letter_topic": "silent-films"}}
    )
    assert settings.stages.transcription.dead_letters("job-processing") == "silent-films"
    assert settings.stages.metadata.dead_letters("job-processing") == "job-processing-dead"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": 5, "topics": {"processing": "x"}},
        {"topics": {"processing": "goog"}},
        {"stages": {"metadata": {"concurrency": 0}}},
        {"stages": {"metadata": {"filter": "attributes.stage ="}}},
        {"stages": {"metadata": {"minimum_backoff": 5, "maximum_backoff": 1}}},
        {"stages": {"metadata": {"ack_deadline": 10, "extension_interval": 10}}},
        {"stages": {"metadata": {"invalid": "ignore"}}},
        {"stages": {"laundry": {}}},
        {"api": {"port": 70_000}},
        {"colour": "red"},
    ],
)
def test_a_setting_that_is_wrong_is_refused_when_it_is_read(wrong):
    with pytest.raises(InvalidArgumentError):
        load_settings(environ={}, **wrong)


def test_as_much_of_a_document_may_be_asked_for_as_can_be_read():
    most = {"max_pages": MOST_PAGES, "max_characters": MOST_CHARACTERS}
    assert load_settings(environ={}, media=most).media.max_pages == MOST_PAGES
    for name, value in most.items():
        for wrong in (0, value + 1):
            with pytest.raises(InvalidArgumentError, match=name):
                load_settings(environ={}, media={name: wrong})
    usual = load_settings(environ={}).media
    assert (usual.max_pages, usual.max_characters) == (PAGES, CHARACTERS)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PENSTOCK_DATABSE", "PENSTOCK_DATABASE"),
        ("PENSTOCK_API_PORT", "PENSTOCK_API__PORT"),
        ("PENSTOCK_PORT", "PENSTOCK_API__PORT"),
        ("PENSTOCK_STAGES__METADTA__CONCURRENCY", "PENSTOCK_STAGES__METADATA__CONCURRENCY"),
        ("PENSTOCK_MEDIA__ROOT__X", "PENSTOCK_MEDIA__ROOT"),
        ("PENSTOCK_CONCURRENCY", "PENSTOCK_STAGES__METADATA__CONCURRENCY or PENSTOCK_STAGES__"),
        ("PENSTOCK_API_TOKN", "PENSTOCK_API_TOKEN"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_the_one_that_was_meant(variable, meant):
    with pytest.raises(InvalidArgumentError) as told:
        load_settings(environ={variable: "hunter22", "PENSTOCK_URL": "nats://host"})
    assert f"no setting {variable} (did you mean {meant}" in str(told.value)
    assert "hunter22" not in str(told.value)


def test_all_that_is_misspelt_is_told_at_once(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"PENSTOCK_NONSENSE, nor PENSTOCK_ULR \(did"):
        load_settings(environ={"PENSTOCK_ULR": "x", "PENSTOCK_NONSENSE": "x"})
    file = tmp_path / "penstock.toml"
    file.write_text('[media]\nrot = "x"\n[stages.metadata]\nconcurency = 2\n')
    with pytest.raises(InvalidArgumentError) as told:
        load_settings(file, {})
    assert "media.rot (did you mean media.root?), nor stages.metadata.concurency" in str(told.value)
    assert str(file) in str(told.value)
    with pytest.raises(InvalidArgumentError, match="did you mean database"):
        load_settings(environ={}, databse="sqlite://")


def test_variables_of_others_are_left_alone():
    environ = {
        "PENSTOCK_BRIDGE_APP_NAME": "shop",
        "PENSTOCK_API_URL": "http://127.0.0.1:8080",
        "PENSTOCK_API_TOKEN": "x",
        "PENSTOCK_API__TOKENS__secret-secret": "user-1",
        # What Kubernetes says of services called penstock and penstock-api.
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_PORT": "tcp://10.0.0.1:80",
        "PENSTOCK_API_SERVICE_PORT_HTTP": "80",
        "PENSTOCK_API_PORT": "tcp://10.0.0.1:80",
        "PENSTOCK_API_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environ=environ).api.port == 8080


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"nothing\.toml"):
        load_settings(tmp_path / "nothing.toml", {})
    (tmp_path / "bad.toml").write_text("url = ")
    with pytest.raises(InvalidArgumentError, match=r"bad\.toml"):
        load_settings(tmp_path / "bad.toml", {})


def test_secrets_are_not_shown():
    settings = load_settings(
        environ={},
        url="nats://user:hunter22@host",
        media={"youtube_api_key": "hunter22"},
        api={"tokens": {"hunter22-hunter22": "user-1"}},
    )
    assert "hunter22" not in repr(settings) + repr(settings.media) + repr(settings.api)


def test_every_setting_may_be_in_a_file_as_containers_are_given_their_secrets(tmp_path):
    key, tokens = tmp_path / "key", tmp_path / "tokens"
    # With the mark that some editors put before a text.
    key.write_text("a secret\n", encoding="utf-8-sig")
    tokens.write_text('{"a-token-of-user-one": "user-1"}')
    settings = load_settings(
        environ={
            "PENSTOCK_MEDIA__YOUTUBE_API_KEY_FILE": str(key),
            "PENSTOCK_API__TOKENS_FILE": str(tokens),
            "SOMEBODY_ELSES_FILE": "/nowhere",
        }
    )
    assert settings.media.youtube_api_key == "a secret"
    assert settings.api.tokens == {"a-token-of-user-one": "user-1"}


def test_a_file_that_a_secret_cannot_be_read_from_is_named_with_its_variable(tmp_path):
    variable = "PENSTOCK_DATABASE_FILE"
    contents = {"empty": b"\n", "binary": b"hush \xff", "huge": b"hush" * 2**19}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in ("missing", ".", *contents):
        with pytest.raises(InvalidArgumentError, match=variable) as caught:
            load_settings(environ={variable: str(tmp_path / name)})
        assert "hush" not in str(caught.value)
    both = {variable: str(tmp_path / "missing"), "PENSTOCK_DATABASE": "sqlite://"}
    with pytest.raises(InvalidArgumentError, match="both set"):
        load_settings(environ=both)
