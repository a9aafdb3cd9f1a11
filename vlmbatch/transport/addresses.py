"""Addresses that the user or the environment names: read once, refused where they cannot be called."""

from __future__ import annotations

import ipaddress
import urllib.request
from functools import lru_cache

import httpx

from vlmbatch.errors import InputError


@lru_cache(maxsize=256)
def parsed(url: str) -> httpx.URL:
    """Return a URL as httpx takes it, read once for all rows."""
    return httpx.URL(url)


def check_base_url(url: str) -> str:
    """Return a base URL without a slash at its end.

    Raises:
        InputError: It is no http(s) URL that can be called, or it holds a user name or password.
    """
    try:
        read = parsed(url)
    except (httpx.InvalidURL, ValueError):
        read = httpx.URL()
    if read.userinfo:
        raise InputError(
            f"the base URL of {read.host} holds a user name or a password",
            hint="leave it out: a key belongs into an environment variable, named by --api-key-env",
        )
    if "%20" in read.host or not is_http(url):
        shown = without_query(url).rpartition("@")[2]
        raise InputError(f"{shown!r}: not an http or https URL", hint="for example http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def is_http(url: str) -> bool:
    """Return whether a URL can be called: http or https, with a host and a port that there can be."""
    try:
        read = parsed(url)
        read.host.encode("idna")  # what looking the name up does first
    except (httpx.InvalidURL, ValueError):
        return False
    return read.scheme in {"http", "https"} and read.host != "" and (read.port is None or 0 < read.port < 1 << 16)


def without_query(url: str) -> str:
    """Return a URL as it may be written down: what stands behind ``?`` can hold secrets."""
    return url.partition("?")[0]


def proxy_by_environment(url: httpx.URL) -> httpx.URL | None:
    """Return the proxy for a URL; this machine itself is never asked through one.

    Raises:
        InputError: The environment names a proxy that is neither http nor https.
    """
    if _is_loopback(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.netloc.decode()):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not is_http(proxy):
        raise InputError(
            f"the proxy for {url.scheme} in the environment is neither http nor https",
            hint="name an HTTP proxy in HTTPS_PROXY, or except the host by NO_PROXY",
        )
    return httpx.URL(proxy)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
