"""Certificates by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates of 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.file = folder, folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        made = ["req", "-x509", *EC, "-days", "2", "-subj", f"/CN={name}"]
        self._openssl(*made, "-keyout", self._key, "-out", self.file)

    def sign(self, certificate: Path, key: Path, at: str = "IP:127.0.0.1") -> None:
        """Both files whole, one after the other."""
        made, asked = self.folder / "made.pem", self.folder / "asked.csr"
        new = ["req", *EC, "-subj", "/CN=steps", "-addext", f"subjectAltName={at}"]
        self._openssl(*new, "-keyout", made, "-out", asked)
        made.replace(key)
        own = ["-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-days", "2"]
        given = ["-in", asked, "-copy_extensions", "copy", "-out", made]
        self._openssl("x509", "-req", *own, *given)
        made.replace(certificate)

    def _openssl(self, *words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)
