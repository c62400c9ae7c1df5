import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FilterError, InvalidArgumentError
from penstock.rules.filters import parse_filter

QUEUED = {"stage": "Queued", "media": "audio"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("attributes:stage", True),
        ("attributes:missing", False),
        ('attributes.stage = "Queued"', True),
        ('attributes.stage = "queued"', False),
        ('attributes.stage="Queued"', True),
        ('attributes.missing = ""', False),
        ('attributes.stage != "Queued"', False),
        ('attributes.stage != "Done"', True),
        ('attributes.missing != "x"', True),
        ('hasPrefix(attributes.stage, "Que")', True),
        ('hasPrefix(attributes.stage, "ueu")', False),
        ('hasPrefix(attributes.stage, "")', True),
        ('hasPrefix(attributes.missing, "")', False),
        ("NOT attributes:missing", True),
        ("-attributes:stage", False),
        ("NOT NOT attributes:stage", True),
        ('NOT (attributes:missing OR attributes.stage = "Queued")', False),
        ('attributes:stage AND attributes.media = "audio"', True),
        ("attributes:stage AND attributes:missing", False),
        ("attributes:missing OR attributes:stage", True),
        ('(attributes:missing OR attributes:stage) AND attributes.media = "audio"', True),
        ("attributes:stage AND NOT attributes:missing", True),
        ("  attributes:stage\n\tAND attributes:media ", True),
        ('attributes."stage" = "Queued"', True),
        ('attributes:"media"', True),
    ],
)
def test_a_filter_matches_as_google_defines_it(text, matches):
    assert parse_filter(text).matches(QUEUED) is matches


def test_quoted_keys_and_values_may_hold_anything():
    tree = parse_filter(r'attributes."iana.org/language_tag" = "say \"hi\" \\ \u00e9"')
    assert tree.matches({"iana.org/language_tag": 'say "hi" \\ é'})


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ('attributes.ce-type = "x"', {"ce-type": "x"}),
        ("attributes:ce-type", {"ce-type": ""}),
        ('attributes.2nd = "x"', {"2nd": "x"}),
        ("attributes:1", {"1": ""}),
        ("attributes:9-lives AND -attributes:dead-or-alive", {"9-lives": ""}),
        ('hasPrefix(attributes.ce-type, "com.")', {"ce-type": "com.shop"}),
        ("attributes:NOT", {"NOT": ""}),
        ('attributes.a-b="x"', {"a-b": "x"}),
    ],
)
def test_keys_of_letters_digits_hyphens_and_underscores_need_no_quotes(text, attributes):
    tree = parse_filter(text)
    assert tree.matches(attributes)
    assert not tree.matches({"a": "x", "ce": "x", "nd": "x"})


@pytest.mark.parametrize(
    ("escaped", "meant"),
    [
        (r"\x41", "A"),
        (r"\101", "A"),
        (r"\n\t\r", "\n\t\r"),
        (r"\u0041", "A"),
        (r"\ud83d\ude00", "😀"),
        (r"\U0001f600", "😀"),
        (r"\'", "'"),
        (r"a\x41\u0042c", "aABc"),
        (r"\377", "ÿ"),
    ],
)
def test_escapes_are_those_of_google(escaped, meant):
    tree = parse_filter(f'attributes.k = "{escaped}"')
    assert tree.matches({"k": meant})
    assert not tree.matches({"k": escaped})


@pytest.mark.parametrize(
    "escaped",
    [
        r"\q",
        r"\x4",
        r"\400",
        r"\19",
        r"\ud83d",
        r"\ude00",
        r"\ud83d\u0041",
        r"\U00110000",
        r"\U0000d800",
    ],
)
def test_an_escape_that_is_none_is_pointed_at(escaped):
    with pytest.raises(FilterError, match="escape") as caught:
        parse_filter(f'attributes.k = "ab{escaped}"')
    assert caught.value.column == 19


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "the end"),
        ("   ", 4, "the end"),
        ("stage = 1", 1, "expected attributes"),
        ("attributes", 11, "expected . or :"),
        ("attributes.", 12, "attribute key"),
        ('attributes.stage == "x"', 19, "double quotes"),
        ("attributes.stage = Queued", 20, "double quotes"),
        ('attributes.stage > "x"', 18, "unexpected character '>'"),
        ('attributes.stage "x"', 18, "expected = or !="),
        ('attributes.stage = "x', 20, "never closed"),
        ("attributes:a AND attributes:b OR attributes:c", 31, "parentheses"),
        ("attributes:a and attributes:b", 14, "upper case"),
        ("attributes:a attributes:b", 14, "expected AND, OR or the end"),
        ("(attributes:a", 14, "')'"),
        ("attributes:a)", 13, "expected AND, OR or the end"),
        ("NOT", 4, "the end"),
        ('hasPrefix(attributes.a "x")', 24, "','"),
        ("hasPrefix(attributes:a)", 21, "'.'"),
        (r'attributes.a = "\q"', 17, "escape"),
        ('attributes.a = "\ud800"', 17, "surrogates"),
        ('attributes.a\n==\t"x"', 15, "double quotes"),
        ("attributes:a AND " * 14 + "attributes:a", 239 + 18, "longer than 256"),
    ],
)
def test_an_error_points_at_the_column(text, column, reason):
    with pytest.raises(FilterError, match="column") as caught:
        parse_filter(text if "longer" not in reason else text + " " * 20)
    assert caught.value.column == column
    assert reason in caught.value.reason
    assert caught.value.code == 3
    _, shown, pointer = str(caught.value).encode().decode().splitlines()
    assert pointer.index("^") == column + 1
    assert shown.startswith("  ")


def test_deep_nesting_is_an_error_not_a_crash():
    with pytest.raises(FilterError, match="nested"):
        parse_filter("(" * 120 + "attributes:a" + ")" * 120)
    with pytest.raises(FilterError, match="nested"):
        parse_filter("-" * 200 + "attributes:a")


def test_only_text_is_a_filter():
    with pytest.raises(InvalidArgumentError, match="bytes"):
        parse_filter(b"attributes:a")


@given(st.text(alphabet='attributes.:="!-() NOTANDORhasPrefix,\\u0041x', max_size=60))
def test_any_text_parses_or_is_refused(text):
    try:
        tree = parse_filter(text)
    except FilterError as error:
        assert 1 <= error.column <= len(text) + 1
    else:
        assert tree.matches({}) in (True, False)
