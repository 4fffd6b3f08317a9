"""Pages: a head with a policy, strangers' text as text, one script and its digest."""

import base64
import hashlib
import json
import re

from vitrail.runtime.html_page import GENERATOR, script_data, text, write_html

EVIL = '</script><img src=x onerror="alert(1)">$title'


def page(folder, **values):
    (folder / "a.html").write_text("<body>$title$about<script>$script</script></body>\n</html>\n")
    (folder / "a.css").write_text("p { color: $red }\n")
    for name in ("one.js", "two.js"):
        (folder / name).write_text(f"const {name[:3]} = '$title';\n")
    write_html(folder / "out.html", folder / "a.html", title=EVIL, about=text(EVIL), **values)
    return (folder / "out.html").read_text(encoding="utf-8")


def policy(written):
    return re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', written)[1]


def test_scripts_are_one_and_the_policy_has_its_digest(tmp_path):
    written = page(tmp_path, scripts=[tmp_path / "one.js", tmp_path / "two.js"], images="'self' file:")
    script = re.search(r"<script>(.*)</script>", written, re.DOTALL)[1]
    assert script.index("const one") < script.index("const two")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy(written)
    assert policy(written).startswith("default-src 'none'; ") and "img-src 'self' file:;" in policy(written)


def test_text_stays_text_and_the_style_is_inside(tmp_path):
    written = page(tmp_path, more='<meta name="figures" content="">\n')
    assert "<img" not in written and written.count("</script>") == 1
    assert written.count("$title") == 3  # of both texts and the heading: what is filled in is not a template
    assert "p { color: $red }" in written
    assert (GENERATOR.decode() + '\n<meta name="figures" content="">\n') in written
    assert "script-src 'unsafe-inline'" in policy(written) and "img-src data:;" in policy(written)


def test_no_data_ends_the_script():
    assert "<" not in script_data({"a": EVIL})
    assert json.loads(script_data({"a": EVIL})) == {"a": EVIL}
