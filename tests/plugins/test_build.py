"""The build of the native libraries: its products, the headers it fetches, and installs without a compiler."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tightbeam.plugins.library import cpu_library, cuda_library

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake on the path")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def test_the_build_backend_is_the_one_that_was_tested() -> None:
    """A build in isolation installs it anew, without constraints.txt."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    versions = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    assert backend == [f"scikit-build-core=={versions['scikit_build_core']}"]


def configure(build: Path, *definitions: str) -> None:
    subprocess.run(["cmake", "-S", PLUGINS, "-B", build, "-DTIGHTBEAM_WERROR=ON", *definitions], check=True)


def configure_error(build: Path, *definitions: str, **environment: str) -> str:
    """The error of a configuration that fails, in one line."""
    command = ["cmake", "-S", PLUGINS, "-B", build, *definitions]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


# ---- paths of the libraries ----


def test_library_can_be_named_or_disabled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "some.so"
    path.touch()
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", str(path))
    assert cpu_library() == cuda_library() == path
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    assert cpu_library() is None
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", str(tmp_path / "missing.so"))
    with pytest.raises(FileNotFoundError, match=r"missing\.so"):
        cpu_library()


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_library_is_built_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIGHTBEAM_LIBRARY", raising=False)
    library = cpu_library()
    assert library is not None, "the install left the native library out; see `pip install -v -e .`"
    symbols = subprocess.run(["nm", "--dynamic", "--defined-only", library], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in symbols.stdout.splitlines()] == [
        "RegisterCustomOps",
        "tightbeam_draw",
        "tightbeam_end_with",
        "tightbeam_instruction_set",
    ]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_library_loads_where_onnx_runtime_s_wheels_do() -> None:
    library = cpu_library()
    assert library is not None
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", library], capture_output=True, text=True, check=True
    )
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"@GLIBC_([\d.]+)", listed.stdout)}
    assert (2, 17) <= max(needed) <= (2, 28), f"glibc {max(needed)}: the wheel would not install on older systems"


# ---- instruction sets ----

LEVELS = {"x86_64": ("v3", "v4", "v3_vnni", "v4_vnni", "v4_amx"), "aarch64": ("dotprod", "i8mm")}
"""Processor -> the instruction sets beside the baseline for which kernels are compiled."""


@pytest.mark.slow
@needs_cmake
@pytest.mark.skipif(platform.machine() not in LEVELS, reason="one instruction set elsewhere")
def test_kernels_share_no_code_between_instruction_sets(tmp_path: Path) -> None:
    """The linker could keep a weak symbol of an AVX-512 object as the copy for every processor."""
    configure(tmp_path)
    for level in LEVELS[platform.machine()]:
        target = f"tightbeam_kernels_{level}"
        subprocess.run(["cmake", "--build", tmp_path, "--target", target], check=True)
        objects = list((tmp_path / "CMakeFiles" / f"{target}.dir").rglob("*.o"))
        assert objects
        listed = subprocess.run(["nm", "--defined-only", *objects], capture_output=True, text=True, check=True).stdout
        symbols = [line.split()[-2:] for line in listed.splitlines() if len(line.split()) == 3]
        assert any(level in name for _, name in symbols)
        assert [name for kind, name in symbols if kind.isupper() and level not in name] == []
        assert [name for kind, name in symbols if kind in "uvwVW"] == []


# ---- CUDA, which is built on request ----


@needs_cmake
def test_nvcc_is_not_called(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\ntouch "$0.called"\nexit 1\n')
    nvcc.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = ["cmake", "-S", PLUGINS, "-B", tmp_path / "build"]
    subprocess.run(command, check=True, env=os.environ | {"PATH": path, "CUDACXX": str(nvcc)})
    assert not nvcc.with_suffix(".called").exists()
    targets = subprocess.run(
        ["cmake", "--build", tmp_path / "build", "--target", "help"], capture_output=True, text=True
    )
    assert "tightbeam_cpu" in targets.stdout and "tightbeam_cuda" not in targets.stdout


@pytest.mark.slow
@needs_cmake
def test_cuda_library_without_what_it_needs_is_an_error(tmp_path: Path) -> None:
    asked = "-DTIGHTBEAM_CUDA=ON"
    assert "there is no nvcc; name it: -DCMAKE_CUDA_COMPILER=" in configure_error(tmp_path, asked, CUDACXX="/missing")
    no_headers = ("-DTIGHTBEAM_FETCH_HEADERS=OFF", "-DONNXRUNTIME_SYSTEM_DIR=/missing")
    error = configure_error(tmp_path / "headers", asked, *no_headers)
    assert "TIGHTBEAM_CUDA=ON, but there are no headers of ONNX Runtime. Install libonnxruntime-dev" in error
    assert "expected ON or OFF" in configure_error(tmp_path / "value", "-DTIGHTBEAM_CUDA=AUTO")


@pytest.mark.parametrize("capability", [80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_cuda_library_has_code_for(capability: int) -> None:
    """Machine code runs on later GPUs of the same major number. PTX, which a name without "-real" adds, runs on all
    later GPUs."""
    text = (PLUGINS / "CMakeLists.txt").read_text(encoding="utf-8")
    matched = re.search(r"TIGHTBEAM_CUDA_ARCHITECTURES ([^\"]+) CACHE", text)
    assert matched is not None
    served = [
        int(name.removesuffix("-real")) <= capability
        and (not name.endswith("-real") or int(name.removesuffix("-real")) // 10 == capability // 10)
        for name in matched[1].split()
    ]
    assert any(served)


# ---- ONNX Runtime's headers ----


@pytest.fixture(scope="module")
def fetch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_headers", PLUGINS / "cmake" / "fetch_headers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEADER = b"#define ORT_API_VERSION 21\n"


def tar_of(files: dict[str, bytes], mode: str) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode) as tar:  # type: ignore[call-overload]
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return archive.getvalue()


def deb_of(data: bytes) -> bytes:
    package = b"!<arch>\n"
    for name, text in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data)):
        package += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(text):<10}`\n".encode() + text + b"\n" * (len(text) % 2)
        )
    return package


class Mirror:
    """A Debian mirror and a release site in a dictionary."""

    URL = "https://mirror.example/debian"

    def __init__(self, fetch: ModuleType) -> None:
        self.fetch = fetch
        self.pages: dict[str, bytes] = {}
        self.package = deb_of(tar_of({"./usr/include/onnxruntime/onnxruntime_c_api.h": HEADER}, "w:xz"))
        entry = f"Package: libonnxruntime-dev\nFilename: pool/l.deb\nSHA256: {self.sha(self.package)}\n"
        packages = lzma.compress(f"Package: other\nFilename: x\n\n{entry}\n".encode())
        index = "main/binary-amd64/Packages.xz"
        self.pages[f"{self.URL}/dists/trixie/InRelease"] = f"SHA256:\n {self.sha(packages)} 9 {index}\n".encode()
        self.pages[f"{self.URL}/dists/trixie/{index}"] = packages
        self.pages[f"{self.URL}/pool/l.deb"] = self.package

    @staticmethod
    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    def download(self, url: str) -> bytes:
        if url not in self.pages:
            raise self.fetch.FetchError(f"{url}: not found")
        return self.pages[url]


@pytest.fixture
def mirror(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    mirror = Mirror(fetch)
    monkeypatch.setattr(fetch, "download", mirror.download)
    monkeypatch.setattr(fetch, "KEYRING", Path("/missing"))  # its address is https, so no signature is needed
    monkeypatch.setattr(fetch.platform, "machine", lambda: "x86_64")
    yield mirror


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    folder = tmp_path / "apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (folder / "sources.list").write_text(
        f"# deb http://comment/debian x\ndeb [arch=amd64] {Mirror.URL}/ bookworm main\n"
    )
    (folder / "sources.list.d" / "other.sources").write_text(
        "Types: deb\nURIs: http://one.example/debian https://two.example/debian-security\nSuites: bookworm\n"
    )
    return folder


def test_mirrors_come_from_apt(fetch: ModuleType, apt: Path) -> None:
    assert fetch.debian_mirrors(apt) == [Mirror.URL, "http://one.example/debian"]


def test_headers_come_from_the_debian_package(fetch: ModuleType, mirror: Mirror, apt: Path, tmp_path: Path) -> None:
    fetch.fetch(tmp_path / "headers", 18, apt)
    assert (tmp_path / "headers" / "onnxruntime_c_api.h").read_bytes() == HEADER


@pytest.mark.parametrize("page", ["pool/l.deb", "dists/trixie/main/binary-amd64/Packages.xz"])
def test_a_package_with_another_checksum_is_refused(
    page: str, fetch: ModuleType, mirror: Mirror, apt: Path, tmp_path: Path
) -> None:
    mirror.pages[f"{mirror.URL}/{page}"] += b"x"
    with pytest.raises(fetch.FetchError, match="SHA-256"):
        fetch.fetch(tmp_path / "headers", 18, apt)
    assert not (tmp_path / "headers").exists()


def test_http_without_a_signature_is_refused(fetch: ModuleType, mirror: Mirror) -> None:
    with pytest.raises(fetch.FetchError, match="no https"):
        mirror.pages["http://one.example/debian/dists/trixie/InRelease"] = b""
        fetch.signed_text("http://one.example/debian", "trixie")


@pytest.mark.skipif(shutil.which("gpgv") is None, reason="needs gpgv")
def test_a_bad_signature_is_refused(
    fetch: ModuleType, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keyring.gpg").touch()
    monkeypatch.setattr(fetch, "KEYRING", tmp_path / "keyring.gpg")
    with pytest.raises(fetch.FetchError, match="no good signature"):
        fetch.signed_text(mirror.URL, "trixie")


@pytest.mark.skipif(shutil.which("gpgv") is None or shutil.which("gpg") is None, reason="needs gpg and gpgv")
def test_text_outside_the_signed_part_is_not_trusted(
    fetch: ModuleType, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)

    def gpg(*arguments: str, data: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
        return subprocess.run([*command, *arguments], input=data, capture_output=True, check=True).stdout

    gpg("--quick-generate-key", "mirror", "ed25519", "sign", "never")
    (tmp_path / "keyring.gpg").write_bytes(gpg("--export"))
    monkeypatch.setattr(fetch, "KEYRING", tmp_path / "keyring.gpg")
    page = f"{mirror.URL}/dists/trixie/InRelease"
    genuine = mirror.pages[page]
    mirror.pages[page] = b"SHA256:\n forged\n\n" + gpg("--clear-sign", data=genuine) + b"\nforged\n"
    assert fetch.signed_text(mirror.URL, "trixie") == genuine.decode()


def test_headers_fall_back_to_the_release(fetch: ModuleType, mirror: Mirror, apt: Path, tmp_path: Path) -> None:
    mirror.pages = {
        fetch.RELEASE_URL.format(version=fetch.RELEASE, arch="x64"): tar_of(
            {"onnxruntime-linux-x64/include/onnxruntime_c_api.h": HEADER, "onnxruntime-linux-x64/lib/x.h": b""}, "w:gz"
        )
    }
    fetch.fetch(tmp_path / "headers", 18, apt)
    assert [path.name for path in (tmp_path / "headers").iterdir()] == ["onnxruntime_c_api.h"]


def test_each_source_reports_its_error(fetch: ModuleType, mirror: Mirror, apt: Path, tmp_path: Path) -> None:
    del mirror.pages[f"{mirror.URL}/pool/l.deb"]
    with pytest.raises(fetch.FetchError) as caught:
        fetch.fetch(tmp_path / "headers", 18, apt)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 2 * len(fetch.SUITES) + 1  # two mirrors and the release
    assert "pool/l.deb: not found" in lines[1] and "github.com" in lines[-1]


def test_headers_that_are_too_old_are_refused(fetch: ModuleType, mirror: Mirror, apt: Path, tmp_path: Path) -> None:
    with pytest.raises(fetch.FetchError, match="API 22 or newer"):
        fetch.fetch(tmp_path / "headers", 22, apt)


# ---- installs ----

NO_HEADERS = ("cmake.define.TIGHTBEAM_FETCH_HEADERS=OFF", "cmake.define.ONNXRUNTIME_SYSTEM_DIR=/missing")


def wheel_of(folder: Path, settings: tuple[str, ...], **environment: str) -> zipfile.Path:
    """The wheel that `pip install .` would install, built with pip's settings and these environment variables."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    for setting in (*settings, f"build-dir={folder / 'build'}"):
        command += ["--config-settings", setting]
    subprocess.run(command, check=True, env=os.environ | environment)
    (wheel,) = folder.glob("*.whl")
    return zipfile.Path(wheel)


def has_library(wheel: zipfile.Path) -> bool:
    assert (wheel / "tightbeam" / "plugins" / "library.py").is_file()
    return (wheel / "tightbeam" / "plugins" / "lib" / "libtightbeam_cpu.so").is_file()


@pytest.mark.slow
def test_wheel_has_the_library(tmp_path: Path) -> None:
    assert has_library(wheel_of(tmp_path, ()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        pytest.param((), {"CXX": "/missing/c++", "PATH": "/missing"}, id="no compiler"),
        pytest.param(NO_HEADERS, {}, id="no headers"),
        pytest.param((), {"CXXFLAGS": "-Dthrow=syntax+error"}, id="a compiler that fails"),
    ],
)
def test_install_succeeds_without_the_library(
    settings: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    assert not has_library(wheel_of(tmp_path, settings, **environment))


@pytest.mark.slow
def test_install_fails_without_the_cuda_library_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        wheel_of(tmp_path, ("cmake.define.TIGHTBEAM_CUDA=ON",), CUDACXX="/missing")
    assert has_library(wheel_of(tmp_path, ()))  # what was asked before is forgotten


@pytest.mark.slow
@needs_cmake
@needs_nvcc
def test_cuda_library_compiles_for_all_gpus_without_warnings(tmp_path: Path) -> None:
    configure(tmp_path, "-DTIGHTBEAM_CUDA=ON")
    subprocess.run(["cmake", "--build", tmp_path, "--target", "tightbeam_cuda"], check=True)
    assert (tmp_path / "libtightbeam_cuda.so").is_file()
