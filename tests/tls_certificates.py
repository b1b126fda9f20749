"""A certificate authority for one test or benchmark, and a certificate of it for all its hosts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from raytpu.train.replicas.frames import TlsFiles


def make_certificates(home: Path) -> TlsFiles:
    """Write them into ``home``; valid for some days."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "9")
    openssl("req", *key, "-keyout", "host.key", "-out", "host.csr", "-subj", "/CN=host")
    openssl("x509", "-req", "-in", "host.csr", *signer, "-out", "host.pem", "-days", "9")
    return TlsFiles(
        certificate=str(home / "host.pem"), key=str(home / "host.key"), authority=str(home / "ca.pem")
    )
