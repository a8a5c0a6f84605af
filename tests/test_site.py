"""The documentation builds as a site, and no link in it is broken."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert "fd.federation" in reference
    assert "&gt;&gt;&gt;" in reference  # examples are shown as code
    notebook = (tmp_path / "site" / "first-steps.html").read_text()
    assert "test pictures are right" in notebook
    assert 'src="first-steps-1.png"' in notebook
    assert (tmp_path / "site" / "first-steps-1.png").read_bytes().startswith(b"\x89PNG")
