"""Fetch the headers of ONNX Runtime and print their folder, which is in the user's cache.

They come from Debian's package ``libonnxruntime-dev``, through a Debian mirror of the machine's apt sources, or else
from ONNX Runtime's release archive. The mirror's signature is checked if the machine has gpgv and Debian's keys.

The script runs inside the build, so it uses only the standard library. Proxies and certificates are set by the usual
environment variables.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGE = "libonnxruntime-dev"
HEADER = "onnxruntime_c_api.h"
SUITES = ("trixie", "sid")
"""Debian releases that have the package, the stable one first."""
ARCHITECTURES = {
    "x86_64": ("amd64", "x64"),
    "AMD64": ("amd64", "x64"),
    "aarch64": ("arm64", "aarch64"),
    "arm64": ("arm64", "aarch64"),
}
"""Machine, as Linux, Windows and macOS call it -> its names in Debian's archive and in the release archive. The headers
are the same for every system."""
RELEASE = "1.18.1"
RELEASE_URL = (
    "https://github.com/microsoft/onnxruntime/releases/download/v{version}/onnxruntime-linux-{arch}-{version}.tgz"
)
TIMEOUT_S = 30
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class FetchError(Exception):
    """A source of the headers failed; the message gives the reason."""


def debian_mirrors(apt: Path) -> list[str]:
    """Addresses of the Debian mirrors in the sources of a folder like /etc/apt, in one-line and deb822 form."""
    found: list[str] = []
    for path in sorted([*apt.glob("sources.list"), *apt.glob("sources.list.d/*.list")]):
        for line in path.read_text(errors="replace").splitlines():
            if match := re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s", line):
                found.append(match[1])
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        for line in path.read_text(errors="replace").splitlines():
            if match := re.match(r"URIs:(.*)", line, re.IGNORECASE):
                found += match[1].split()
    addresses = [address.rstrip("/") for address in found if re.match(r"https?://", address)]
    return list(dict.fromkeys(address for address in addresses if address.endswith("/debian")))


def download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            data: bytes = response.read()
            return data
    except (urllib.error.URLError, OSError) as error:
        raise FetchError(f"{url}: {getattr(error, 'reason', error)}") from error


def signed_text(mirror: str, suite: str) -> str:
    """The signed part of the suite's InRelease file. Without gpgv or a keyring, the mirror must use https.

    gpgv writes what it has verified. The file may have other text around it, which anybody could have written.
    """
    data = download(f"{mirror}/dists/{suite}/InRelease")
    if shutil.which("gpgv") and KEYRING.is_file():
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            verified = subprocess.run(["gpgv", "--keyring", KEYRING, "--output", "-", file.name], capture_output=True)
        if verified.returncode != 0:
            raise FetchError(f"{mirror} {suite}: no good signature on InRelease by a key of {KEYRING}")
        return verified.stdout.decode()
    if not mirror.startswith("https:"):
        raise FetchError(f"{mirror}: no https, and gpgv or {KEYRING} is missing, so its signature cannot be checked")
    return data.decode()


def checked(data: bytes, sha256: str, name: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise FetchError(f"{name}: its SHA-256 is not {sha256}")
    return data


def from_debian(mirror: str, suite: str, architecture: str) -> dict[str, bytes]:
    """Name -> text of each header in the package."""
    index = f"main/binary-{architecture}/Packages.xz"
    entry = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {index}$", signed_text(mirror, suite), re.MULTILINE)
    if entry is None:
        raise FetchError(f"{mirror} {suite}: InRelease names no {index}")
    packages = lzma.decompress(checked(download(f"{mirror}/dists/{suite}/{index}"), entry[1], index)).decode()
    for paragraph in packages.split("\n\n"):
        if not paragraph.startswith(f"Package: {PACKAGE}\n"):
            continue
        fields = dict(re.findall(r"^(Filename|SHA256): (\S+)$", paragraph, re.MULTILINE))
        package = checked(download(f"{mirror}/{fields['Filename']}"), fields["SHA256"], fields["Filename"])
        return dict(headers(io.BytesIO(deb_member(package, "data.tar"))))
    raise FetchError(f"{mirror} {suite}: has no {PACKAGE} for {architecture}")


def deb_member(package: bytes, prefix: str) -> bytes:
    """A member of a .deb, an ar archive whose members have 60 bytes of header each and are padded to even sizes."""
    offset = len(b"!<arch>\n")
    while offset + 60 <= len(package):
        name = package[offset : offset + 16].decode().strip()
        size = int(package[offset + 48 : offset + 58])
        offset += 60
        if name.startswith(prefix):
            return package[offset : offset + size]
        offset += size + size % 2
    raise FetchError(f"{PACKAGE}: has no {prefix}")


def from_release(architecture: str) -> dict[str, bytes]:
    return dict(headers(io.BytesIO(download(RELEASE_URL.format(version=RELEASE, arch=architecture)))))


def headers(archive: io.BytesIO) -> Iterator[tuple[str, bytes]]:
    """onnxruntime_c_api.h, and the headers beside it, which its later versions include."""
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            path = Path(member.name)
            if member.isfile() and path.suffix == ".h" and path.parent.name in ("onnxruntime", "include", "session"):
                file = tar.extractfile(member)
                assert file is not None
                yield path.name, file.read()


def sources(apt: Path) -> Iterator[tuple[str, Callable[[], dict[str, bytes]]]]:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return
    debian, release = ARCHITECTURES[machine]
    for mirror in debian_mirrors(apt):
        for suite in SUITES:
            yield f"{PACKAGE} of {mirror} {suite}", lambda m=mirror, s=suite: from_debian(m, s, debian)  # type: ignore[misc]
    yield f"the release archive {RELEASE}", lambda: from_release(release)


def api_version(header: bytes) -> int:
    match = re.search(rb"^#define ORT_API_VERSION (\d+)", header, re.MULTILINE)
    return int(match[1]) if match else 0


def fetch(folder: Path, oldest_api: int, apt: Path) -> None:
    """Make ``folder``, complete or not at all. Raises FetchError with a reason for each source that failed."""
    failures = []
    for name, source in sources(apt):
        try:
            files = source()
            if api_version(files.get(HEADER, b"")) < oldest_api:
                raise FetchError(f"has no {HEADER} of API {oldest_api} or newer")
        except (FetchError, lzma.LZMAError, tarfile.TarError) as error:
            failures.append(f"  {name}: {error}")
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            for file, text in files.items():
                (new / file).write_bytes(text)
            new.rename(folder)
        print(f"tightbeam: took the headers of ONNX Runtime from {name}", file=sys.stderr)
        return
    raise FetchError("cannot fetch the headers of ONNX Runtime:\n" + "\n".join(failures or ["  unknown machine"]))


def main() -> int:
    oldest_api = int(sys.argv[1])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tightbeam" / f"onnxruntime-headers-{oldest_api}"
    try:
        if not (folder / HEADER).is_file():
            fetch(folder, oldest_api, Path("/etc/apt"))
    except (FetchError, OSError) as error:
        print(f"tightbeam: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
