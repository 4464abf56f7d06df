"""Pages in headless Chromium (screenshots, and whether they play), and their scripts in Node.js."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from chromium import CHROMIUM, run

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed (apt install chromium)")
# presses play, and tells a second and a half later how far the slider came, and of how many colours each canvas is
PLAYER = """<script>
requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 16);  // the browser's own has no virtual time
const errors = [];
addEventListener("error", event => errors.push(event.message || "not loaded: " + event.target.src), true);
addEventListener("unhandledrejection", event => errors.push(String(event.reason)));
addEventListener("load", () => setTimeout(() => {
  const slider = document.getElementById("slider"), first = Number(slider.value);
  document.getElementById("play").click();
  setTimeout(() => {
    const colours = canvas => new Set(new Uint32Array(
      canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
    const isVisible = canvas => canvas.width && canvas.height && canvas.offsetParent;
    const canvases = [...document.querySelectorAll("canvas")].filter(isVisible);
    const result = {errors, frames: Number(slider.value) - first, colours: canvases.map(colours)};
    const text = document.createElement("pre");
    text.id = "played";
    text.textContent = JSON.stringify(result);
    document.getElementById("data").remove();
    document.body.append(text);
  }, 1500);
}, 500));
</script>"""


NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed (apt install nodejs)")


def draw(page, *words):
    """What the script of a page draws on the canvases of a stub."""
    stub = Path(__file__).parent / "data" / "page_stub.js"
    done = subprocess.run([NODE, stub, page, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def console(done: subprocess.CompletedProcess) -> list[str]:
    """Lines of the page's console."""
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def play(page: Path, folder: Path) -> dict:
    """What a report does when play is pressed: `errors`, `frames` that it came forward, `colours` of each canvas."""
    probe = folder / f"play-{page.stem}.html"
    probe.write_text(page.read_text(encoding="utf-8").replace("<head>", "<head>" + PLAYER, 1), encoding="utf-8")
    done = run(probe.as_uri(), folder, "--window-size=1400,1000", "--dump-dom")
    result = json.loads(html.unescape(re.search(r'<pre id="played">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    return {**result, "errors": [*result["errors"], *console(done)]}
