"""Pages as a browser shows them, and the pictures in them."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

_PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const pictures = [...document.images].map((i) => i.complete && i.naturalWidth > 0 ? 1 : 0);
  const out = [...document.querySelectorAll("body *")].filter((e) => {
    if (e.closest(".wide") && !e.matches(".wide")) return false;
    return e.getBoundingClientRect().right > innerWidth + 1;
  }).map((e) => e.tagName + " " + e.className);
  const content = document.documentElement.scrollWidth;
  const said = (() => { /* script */ })();
  const found = { width: innerWidth, content, pictures, out, said };
  parent.document.documentElement.dataset.found = btoa(JSON.stringify(found));
}, 1000));
</script>"""
_FRAME = """<!doctype html><iframe srcdoc="{page}" style="border:0;height:900px;width:{width}px">
</iframe>"""  # because no window of Chromium is narrower than 500 pixels


class _Parts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.images, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        if tag == "img":
            self.images.append(values["src"])
        if tag != "img":
            self.links += [values[k] for k in ("href", "src", "srcset", "action") if k in values]


def pictures_of(page):
    """The pictures inside a page, decoded; nothing may be loaded from elsewhere."""
    parts = _Parts()
    text = page.read_text(encoding="utf-8")
    parts.feed(text)
    assert not {"script", "link", "iframe", "object"} & set(parts.tags)
    assert not parts.links
    assert "url(" not in text
    assert "@import" not in text
    found = []
    for source in parts.images:
        kind, _, content = source.partition(";base64,")
        assert kind == "data:image/png"
        found.append(Image.open(io.BytesIO(base64.b64decode(content, validate=True))))
        found[-1].load()
    return found


def shown(page, width, folder, script=""):
    """What Chromium shows of a page in a window of this width.

    Returns the window's and the content's width, 1 or 0 for each picture, the elements that
    stick out on the right (other than in a table that scrolls on its own), and what `script`, the
    body of a function, returns at the end.
    """
    framed = Path(folder) / f"framed-{width}.html"
    probed = page.read_text(encoding="utf-8").replace(
        "</body>", _PROBE.replace("/* script */", script) + "</body>"
    )
    framed.write_text(_FRAME.format(page=html.escape(probed), width=width), encoding="utf-8")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    flags += (f"--user-data-dir={folder}/profile", "--window-size=1300,1000", "--dump-dom")
    flags += ("--virtual-time-budget=5000",)
    done = subprocess.run(
        [CHROMIUM, *flags, framed.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'data-found="([^"]+)"', done.stdout)
    assert found, done.stderr
    return json.loads(base64.b64decode(found[1]))
