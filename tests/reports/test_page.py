"""Pages: everything that is given is text, nothing is fetched, and the script does what it is there for."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.browser import dom

from motet.errors import SettingError
from motet.reports.charts import Bar, Line, bars, histogram, lines, strips, ticks
from motet.reports.html import (
    Column,
    Html,
    Section,
    Shown,
    details,
    facts,
    note,
    page,
    paragraph,
    picture,
    plain,
    player,
    side_by_side,
    table,
)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EVIL = """<script>document.title = "evil"</script><img src=x onerror="alert(1)">"'&amp;]]>--></style></title></svg>"""


def everything(word: str) -> str:
    """A page that says one word wherever a word can be said."""
    values = [1.0, 2.0, math.nan, 4.0]
    return page(
        word,
        [
            Section(word, [paragraph(word), note(word, level="error"), facts([(word, word)])], lead=word),
            Section(
                word,
                [
                    table([Column(word, hint=word), Column("n", number=True)], [[word, Shown(1, word, word)]] * 2),
                    details(word, Html("code", word)),
                    lines([Line(word, values, values, behind=[(values, values)])] * 2, title=word, caption=word),
                    lines([Line(word, values, values)], title=word, x_label=word, y_label=word),
                    bars([Bar(word, 2.0, 1.0, 3.0)], title=word, x_label=word, caption=word),
                    strips({word: values, f"no {word}": []}, title=word, x_label=word),
                    histogram(values, title=word, x_label=word, y_label=word),
                    side_by_side(picture(PNG, alt=word, caption=word)),
                    player([PNG, PNG], frames_per_s=5, alt=word, caption=word),
                ],
            ),
        ],
        lead=word,
        generator=word,
    )


class Seen(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.attributes = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.words.append(data)


USUAL = Seen(everything("word"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(min_size=1, max_size=40) | st.sampled_from([EVIL, "\x00\x1b[2J", "\udcff", "\u202eabc", "]]>", "-->"]))
def test_all_given_values_are_shown_as_text(word):
    made = everything(word)
    made.encode("utf-8")
    seen = Seen(made)
    assert seen.tags == USUAL.tags
    assert [(tag, name) for tag, name, _ in seen.attributes] == [(tag, name) for tag, name, _ in USUAL.attributes]
    shown = plain(word).replace("\r", "")
    assert (shown in seen.words) or not shown.strip(), "words come through"
    assert ("img", "alt", shown) in seen.attributes
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", made)


def test_equal_input_gives_equal_bytes():
    assert everything("x") == everything("x") != everything("y")


def test_nothing_is_fetched_and_no_script_runs_but_its_own():
    made = everything(EVIL)
    seen = Seen(made)
    for _, name, value in seen.attributes:
        assert name not in ("srcset", "action", "formaction", "xlink:href", "background") and not name.startswith("on")
        if name == "src":
            assert value.startswith("data:image/png;base64,")
        if name == "href" and not value.startswith("data:text/csv;charset=utf-8;base64,"):
            assert value.startswith("#") and ("section", "id", value[1:]) in seen.attributes
        assert "url(" not in (value or "") and "@import" not in (value or "")
    assert seen.tags.count("script") == seen.tags.count("style") == 1
    script = re.search("<script>(.*)</script>", made, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for tag, name, value in seen.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?:|//[a-z]|url\(|@import", re.search("<style>(.*)</style>", made, re.S)[1])
    assert not re.search(r"https?:|fetch|XMLHttp|import\(|eval\(|innerHTML", script)


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ("script", {}),
        ("iframe", {}),
        ("p onclick=x", {}),
        ("p", {"onclick": "x"}),
        ("p", {"OnClick": "x"}),
        ("p", {"a b": "x"}),
        ("img", {"src": "https://example.org/x.png"}),
        ("img", {"src": "data:text/html;base64,AAAA"}),
        ("img", {"src": "data:image/svg+xml;base64,AAAA"}),
        ("a", {"href": "javascript:alert(1)"}),
        ("a", {"href": "https://example.org"}),
        ("a", {"href": "data:text/html;base64,AAAA"}),
        ("p", {"style": "background:url(x)"}),
        ("p", {"style": "left:1%;behavior:x"}),
    ],
)
def test_scripts_and_links_cannot_be_written(tag, attributes):
    with pytest.raises(SettingError):
        Html(tag, "text", **attributes)


def test_elements():
    assert str(Html("p", "a<b", None, [Html("b", 1), " 2"], 3.5, class_="x", hidden=True, title=None)) == (
        '<p class="x" hidden>a&lt;b<b>1</b> 23.5</p>'
    )
    deep = Html("span", "x")
    for _ in range(5000):
        deep = Html("div", deep)
    assert str(deep).count("<div>") == 5000


@pytest.mark.parametrize(
    "bad",
    [
        lambda: table([Column("a")], [["x", "y"]]),
        lambda: picture(b"<svg>", alt="x"),
        lambda: player([], frames_per_s=1, alt="x"),
        lambda: player([PNG], frames_per_s=0, alt="x"),
        lambda: player([PNG, PNG], frames_per_s=1, alt="x", labels=["one"]),
        lambda: lines([Line("x", [1, 2], [1])], title="t"),
        lambda: lines([Line("x", [1, 2], [1, 2], low=[0, 0])], title="t"),
    ],
)
def test_bad_input_is_refused(bad):
    with pytest.raises(SettingError, match="must"):
        bad()


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 7e4, 3e12])
@pytest.mark.parametrize("kind", ["line", "dots", "dashes"])
def test_any_numbers_can_be_drawn(scale, kind):
    for values in ([], [math.nan], [math.inf, 1.0], [0.0], [-1.0, -1.0], [1.0, math.nan, 3.0], [5.0, 4.0, -3.0]):
        ys = [value * scale for value in values]
        made = [
            lines([Line("x", list(range(len(ys))), ys, ys, ys, kind=kind)], title="t"),
            bars([Bar("x", value) for value in ys], title="t"),
            strips({"x": ys}, title="t"),
            histogram(ys, title="t"),
        ]
        for one in made:
            text = str(one)
            assert "nan" not in text.lower().replace("&#", "") and "inf" not in text.lower()
            assert ("No data." in text) == (not any(map(math.isfinite, ys)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_ticks_are_few_round_and_inside(low, span):
    high = low + span
    if not high > low:
        return
    found = ticks(low, high)
    assert 1 <= len(found) <= 11
    room = 1e-6 * max(span, abs(low) * 1e-6)
    assert all(low - room <= tick <= high + room for tick in found) or found == [low]
    assert found == sorted(set(found))


def test_curves_are_where_the_numbers_say():
    made = str(lines([Line("x", [0, 5, 10], [0.0, 10.0, 5.0], [0.0, 9.0, 4.0], [0.0, 11.0, 6.0])], title="t"))
    # From -0.55 to 11.55 upright: 5 % of room on either side.
    up = lambda y: f"{1000 * (1 - (y + 0.55) / 12.1):.1f}"  # noqa: E731
    assert f'd="M0.0 {up(0)}L500.0 {up(10)}L1000.0 {up(5)}"' in made
    assert f'd="M0.0 {up(0)}L500.0 {up(11)}L1000.0 {up(6)}L1000.0 {up(4)}L500.0 {up(9)}L0.0 {up(0)}Z"' in made
    gap = str(lines([Line("x", [0, 1, 2, 3], [0.0, math.nan, 0.0, 1.0])], title="t"))
    assert re.search(r'd="M0\.0 [\d.]+h0M666\.7 [\d.]+L1000\.0 [\d.]+"', gap), "a gap is not bridged"


def saved(made):
    """The CSV files of a page, by name."""
    found = re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]*)" download="([^"]*)"', str(made))
    return {name: base64.b64decode(data).decode() for data, name in found}


def test_each_chart_holds_its_data_as_csv():
    curve = Line('up, "or" down', [0, 1], [0.5, math.nan], [0.0, 0.0], [1.0, math.inf])
    assert saved(lines([curve, Line("=1+1", [2], [3])], title="Return of A & B")) == {
        "return_of_a_b.csv": 'curve,x,y,low,high\n"up, ""or"" down",0,0.5,0,1\n"up, ""or"" down",1,,0,\n\'=1+1,2,3,,\n'
    }
    assert saved(bars([Bar("x", 2.0, 1.0, 3.0), Bar("y", -1.0)], title="b"))["b.csv"] == (
        "name,value,low,high\nx,2,1,3\ny,-1,,\n"
    )
    assert saved(strips({"x": [1.0, 2.0], "y": []}, title="s"))["s.csv"] == "name,value\nx,1\nx,2\n"
    assert saved(histogram([1, 1, 2], title="h"))["h.csv"] == "from,to,count\n0.5,1.5,2\n1.5,2.5,1\n"


def test_evaluations_are_dots_with_intervals():
    made = str(lines([Line("x", [0, 10], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0], kind="dots")], title="t"))
    (whiskers,) = re.findall(r'd="([^"]*)" class="c0 whiskers"', made)
    up = lambda y: f"{1000 * (1 - (y + 0.15) / 3.3):.1f}"  # noqa: E731
    assert whiskers == f"M0.0 {up(0)}V{up(2)}M1000.0 {up(1)}V{up(3)}"
    assert 'class="c0 dots"' in made and "band" not in made


def test_the_median_is_labelled():
    assert ">median 2</span>" in str(strips({"x": [1.0, 2.0, 9.0]}, title="t"))


def test_charts_beside_each_other_have_the_same_axes():
    one, two = Line("x", [0, 1], [0.0, 1.0]), Line("x", [0, 4], [0.0, 9.0])
    axes = [
        json.loads(
            re.search('data-chart="([^"]*)"', str(lines([line], title="t", beside=[one, two])))[1].replace(
                "&quot;", '"'
            )
        )
        for line in (one, two)
    ]
    assert axes[0]["x"] == axes[1]["x"] == [0, 4] and axes[0]["y"] == axes[1]["y"]


def test_the_script_runs_without_errors(tmp_path):
    made = dom(everything(EVIL), tmp_path)
    assert 'data-ready="yes"' in made and "data-error" not in made
    assert "<title>evil</title>" not in made and "alert(1)" in made


def test_users_can_sort_hide_hover_and_play(tmp_path):
    rows = [["b", 2.0], ["a", 10.0], ["c", None]]
    x = list(np.arange(5.0))
    made = page(
        "t",
        [
            Section("one", [table([Column("name"), Column("value", number=True)], rows)]),
            Section("two", [lines([Line("up", x, x), Line("down", x, [-v for v in x])], title="t")]),
            Section("three", [player([PNG, PNG, PNG], frames_per_s=20, alt="x")]),
        ],
    )
    out = dom(
        made,
        tmp_path,
        """
        const told = {};
        const names = () => [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent);
        const heads = document.querySelectorAll("th button");
        heads[1].click(); told.down = names();
        heads[1].click(); told.up = names();
        heads[0].click(); told.words = names();
        const canvas = document.querySelector(".canvas"), box = canvas.getBoundingClientRect();
        const point = () => canvas.dispatchEvent(new PointerEvent("pointermove",
          { clientX: box.left + box.width * 0.76, clientY: box.top + 5 }));
        point(); told.tip = canvas.querySelector(".tip").textContent;
        document.querySelectorAll(".legend button")[1].click();
        told.hidden = canvas.querySelectorAll("path.gone").length;
        point(); told.less = canvas.querySelector(".tip").textContent;
        document.querySelectorAll(".legend button")[1].click();
        told.shown = canvas.querySelectorAll("path.gone").length;
        const player = document.querySelector(".player"), slider = player.querySelector("input");
        slider.value = "1"; slider.dispatchEvent(new Event("input"));
        told.frame = [...player.querySelectorAll("img")].map((image) => image.hidden);
        player.querySelector("button").click(); told.button = player.querySelector("button").textContent;
        setTimeout(() => {
          told.after = player.querySelector("output").textContent + player.querySelector("button").textContent;
          document.body.append(Object.assign(document.createElement("pre"), { textContent: JSON.stringify(told) }));
        }, 1000);
        """,
    )
    assert "data-error" not in out
    told = json.loads(re.search("<pre>(.*)</pre>", out)[1])
    assert told == {
        "down": ["a", "b", "c"],
        "up": ["b", "a", "c"],
        "words": ["a", "b", "c"],
        "tip": "3up3down-3",
        "hidden": 1,
        "less": "3up3",
        "shown": 0,
        "frame": [True, False, True],
        "button": "Pause",
        "after": "3 / 3Play",
    }
