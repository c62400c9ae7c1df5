"""OIDC tokens for endpoints that check who calls: signed like Google's, by a key of our own."""

from __future__ import annotations

from typing import Any

from penstock.clock import NS, Clock

_LIFETIME = 3600
_ISSUER = "https://accounts.google.com"
_KEY_ID = "penstock-emulator"


class Tokens:
    """The key lives as long as this; `keys` is what endpoints under test check against."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key: Any = None
        self._signer: Any = None

    def bearer(self, push_config: Any) -> str:
        """What the Authorization header says for a subscription with an `oidc_token`."""
        from google.auth import jwt

        asked = push_config.oidc_token
        now = self._clock.time_ns() // NS
        claims = {
            "iss": _ISSUER,
            "aud": asked.audience or push_config.push_endpoint,
            "azp": asked.service_account_email,
            "sub": asked.service_account_email,
            "email": asked.service_account_email,
            "email_verified": True,
            "iat": now,
            "exp": now + _LIFETIME,
        }
        token: bytes = jwt.encode(self._sign(), claims)  # type: ignore[no-untyped-call]
        return f"Bearer {token.decode()}"

    def keys(self) -> dict[str, str]:
        """Public keys by their ids, in PEM: what Google has at /oauth2/v1/certs."""
        from cryptography.hazmat.primitives import serialization

        self._sign()
        pem: bytes = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return {_KEY_ID: pem.decode()}

    def _sign(self) -> Any:
        """Made when first needed: a key takes a while."""
        if self._signer is None:
            from cryptography.hazmat.primitives.asymmetric import rsa
            from google.auth.crypt import RSASigner

            self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            self._signer = RSASigner(self._key, _KEY_ID)  # type: ignore[no-untyped-call]
        return self._signer
