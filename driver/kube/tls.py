"""How to trust the API server, and the client certificate if that is how it knows us."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from driver.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files or bytes (PEM) of a TLS connection; without any, the system's authorities are trusted.

    Bytes win over a file, as in a kubeconfig.
    """

    ca_file: Path | None = None
    ca_data: bytes | None = field(default=None, repr=False)
    certificate_file: Path | None = None
    certificate_data: bytes | None = field(default=None, repr=False)
    key_file: Path | None = None
    key_data: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the files and return a context; called again when they may have been rotated.

        :raises SettingsError: a file is missing or no PEM; its content is never shown.
        """
        try:
            context = ssl.create_default_context(cadata=self._authority())
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._load_certificate(context)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(f"the API server's TLS settings can't be used: {error} ({self._files()})") from error
        return context

    def _authority(self) -> str | None:
        if self.ca_data is not None:
            return self.ca_data.decode("ascii")
        return self.ca_file.read_text("ascii") if self.ca_file is not None else None

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        certificate = self.certificate_data or (self.certificate_file and self.certificate_file.read_bytes())
        key = self.key_data or (self.key_file and self.key_file.read_bytes())
        if not certificate or not key:
            return
        # OpenSSL takes the chain from a file only; this one is readable by us alone and gone at once.
        with tempfile.TemporaryDirectory(prefix="gpu-dra-") as directory:
            pem = Path(directory, "client.pem")
            pem.touch(mode=0o600)
            pem.write_bytes(certificate.rstrip() + b"\n" + key)
            context.load_cert_chain(pem, password=_no_password)

    def _files(self) -> str:
        named = [str(file) for file in (self.ca_file, self.certificate_file, self.key_file) if file is not None]
        return ", ".join(named) or "inline data"


def _no_password() -> str:
    raise ValueError("the client key is encrypted; give one without a password")
