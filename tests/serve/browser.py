"""A browser for the tests of the page: headless Chromium, driven over the WebDriver protocol."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, by the standard
SECONDS = 30.0
# Files as if a person pasted them: [name, base64] each.
PASTE = """
const [files] = arguments, clipboardData = new DataTransfer();
for (const [name, content] of files) {
  const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
  clipboardData.items.add(new File([bytes], name, { type: "image/png" }));
}
document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
"""
MIDDLE = """
arguments[0].scrollIntoView({ block: "center" });
const box = arguments[0].getBoundingClientRect();
return [box.x + box.width / 2, box.y + box.height / 2];
"""


class Browser:
    """One window."""

    def __init__(self, address):
        self.address = address

    def ask(self, method, path, content=None):
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + path, body, method=method)
        try:
            return json.load(urllib.request.urlopen(request, timeout=120))["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """Run a script, the body of a function; return what it returns."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, expression, *arguments, seconds=SECONDS):
        """Wait until an expression is true; return it."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return ({expression})", *arguments)):
            assert time.monotonic() < end, f"not within {seconds:g} seconds: {expression}"
            time.sleep(0.1)
        return value

    def find(self, selector):
        return self.ask("POST", "/element", {"using": "css selector", "value": selector})

    def click(self, selector):
        self.ask("POST", f"/element/{self.find(selector)[ELEMENT]}/click", {})

    def type(self, selector, keys):
        """Type into an element; into a field for files: the path of one."""
        self.ask("POST", f"/element/{self.find(selector)[ELEMENT]}/value", {"text": keys})

    def drop(self, selector, paths):
        """Drag files or folders over the middle of an element, and drop them."""
        x, y = self.run(MIDDLE, self.find(selector))
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            event = {"type": kind, "x": x, "y": y, "data": data}
            self.ask("POST", "/goog/cdp/execute", {"cmd": "Input.dispatchDragEvent", "params": event})

    def paste(self, paths):
        self.run(PASTE, [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in paths])

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def errors(self):
        """Return what the console says: errors and warnings since the last call."""
        messages = self.ask("POST", "/se/log", {"type": "browser"})
        return [one["message"] for one in messages if one["level"] in ("SEVERE", "WARNING")]

    def picture(self, path):
        Path(path).write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))


@contextmanager
def browser(profile, width=1280, height=900, dark=False):
    """Start Chromium and its driver; end both."""
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            lines = iter(driver.stdout.readline, "")
            port = next(
                line.rsplit("port ", 1)[1].strip(" .\n") for line in lines if "successfully on port " in line
            )
            options = {
                "binary": CHROMIUM,
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--force-device-scale-factor=1",
                    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",  # a camera
                    f"--user-data-dir={profile}", f"--window-size={width},{height}",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                ],
            }  # fmt: skip
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            window = Browser(f"http://127.0.0.1:{port}/session")
            session = window.ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            window.address += f"/{session}"
            try:
                yield window
            finally:
                window.ask("DELETE", "")
        finally:
            driver.terminate()
