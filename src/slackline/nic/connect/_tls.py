"""TLS for TCP rails: one certificate per engine, and sockets that pin the peer's certificate.

The certificates are self-signed and trusted only through the preceding handshake: each end sends
its certificate together with the proof that it knows the job's secret, and TLS accepts exactly that
certificate. The private key is made with the engine and never leaves its memory. Each connection
negotiates session keys of its own.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl

from slackline._distribution import install
from slackline.errors import LinkError, UsageError
from slackline.nic.connect._sockets import closed_in_children, past, ready

__all__ = ["Identity", "secure"]

_LIMIT_S = 3.0
_BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
"""The validity covers centuries, because the clocks of hosts may differ."""


class Identity:
    """The engine's certificate and its private key. Raises UsageError without `cryptography`."""

    def __init__(self, engine: str) -> None:
        self.certificate, self._pem = _make(engine)

    def context(self, peer: bytes, *, server: bool) -> ssl.SSLContext:
        """Return a TLS context that presents our certificate and accepts only `peer` (DER)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if server:
            context.num_tickets = 0
        try:
            context.load_verify_locations(cadata=peer)
        except (ssl.SSLError, ValueError) as error:  # ValueError: the certificate is empty.
            raise LinkError(f"the peer's certificate cannot be read: {error}") from error
        fd = os.memfd_create("slackline-certificate", os.MFD_CLOEXEC)
        try:
            os.write(fd, self._pem)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context


async def secure(
    sock: socket.socket,
    identity: Identity,
    peer: bytes,
    *,
    server: bool,
) -> ssl.SSLSocket:
    """Perform the TLS handshake over a connected, non-blocking socket; return the TLS socket.

    Takes ownership of `sock`, also on failure. Raises ssl.SSLError or LinkError unless the other
    end has the private key of the certificate `peer`, and LinkError if the peer does not answer
    within three seconds.
    """
    until_s = asyncio.get_running_loop().time() + _LIMIT_S
    try:
        wrapped = closed_in_children(
            identity.context(peer, server=server).wrap_socket(
                sock, server_side=server, do_handshake_on_connect=False
            )
        )
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                wrapped.do_handshake()
                break
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wanted:
                if past(until_s):
                    raise LinkError("the TLS handshake was not answered in time") from None
                write = isinstance(wanted, ssl.SSLWantWriteError)
                await ready(wrapped, write=write, until_s=until_s)
        if wrapped.getpeercert(binary_form=True) != peer:
            raise LinkError("the peer showed another certificate than it had announced")
        return wrapped
    except BaseException:
        wrapped.close()
        raise


def _make(engine: str) -> tuple[bytes, bytes]:
    """Make a self-signed certificate; return it in DER, and in PEM with its private key."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise UsageError(
            f"tls='require' needs the package cryptography: {install('tls')}"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"slackline {engine}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    return certificate.public_bytes(serialization.Encoding.DER), private + public
