"""An example client: sends each line of a file to a served model; one function for each protocol.

python tools/serve/serving_client.py demo export/demo/examples.txt --protocol grpc --parameter num_beams=4

Results keep the order of the lines. Needs `pip install 'tritonclient[grpc,http]'` and nothing of Tightbeam's but typer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
import typer

PORTS = {"http": 8000, "grpc": 8001, "stream": 8001}
TIMEOUT_SECONDS = 600.0


async def ask_http(client: Any, model: str, text: str, parameters: dict[str, Any]) -> AsyncIterator[str]:
    """Over HTTP. ``client``: a tritonclient.http.aio.InferenceServerClient."""
    source = triton_http.InferInput("TEXT", [1, 1], "BYTES")  # one row of one text
    source.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    response = await client.infer(model, [source], parameters=parameters)
    yield "\n".join(text.decode() for text in response.as_numpy("TEXT")[0])  # one, or num_return_sequences


async def ask_grpc(client: Any, model: str, text: str, parameters: dict[str, Any]) -> AsyncIterator[str]:
    """Over gRPC. ``client``: a tritonclient.grpc.aio.InferenceServerClient."""
    source = triton_grpc.InferInput("TEXT", [1, 1], "BYTES")
    source.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    response = await client.infer(model, [source], parameters=parameters)
    yield "\n".join(text.decode() for text in response.as_numpy("TEXT")[0])


async def ask_stream(client: Any, model: str, text: str, parameters: dict[str, Any]) -> AsyncIterator[str]:
    """Over gRPC, from a model written with --stream: pieces of text, as the search finds them."""
    source = triton_grpc.InferInput("TEXT", [1, 1], "BYTES")
    source.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    wanted = [triton_grpc.InferRequestedOutput(name) for name in ("TEXT", "FINISHED")]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": model, "inputs": [source], "outputs": wanted, "parameters": parameters}

    said = ""
    async for response, error in client.stream_infer(requests(), stream_timeout=TIMEOUT_SECONDS):
        if error is not None:
            raise error
        piece = "\n".join(text.decode() for text in response.as_numpy("TEXT")[0])
        if response.as_numpy("FINISHED")[0, 0]:  # the whole text, which is the one that counts
            piece = piece[len(said) :] if piece.startswith(said) else "\n" + piece
        said += piece
        yield piece


ASK = {"http": ask_http, "grpc": ask_grpc, "stream": ask_stream}


def read_parameter(argument: str) -> tuple[str, Any]:
    """``num_beams=4`` -> a name and a value. Triton takes numbers, true, false and words; the server reads lists from
    JSON in a text: ``bad_words_ids=[[17],[4,8]]``."""
    name, separator, text = argument.partition("=")
    if not (name and separator):
        raise typer.BadParameter(f"{argument!r} is not NAME=VALUE; pass for instance num_beams=4")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return name, value if isinstance(value, (bool, int, float)) else text


async def ask_all(protocol: str, address: str, model: str, texts: list[str], parameters: Any, concurrency: int) -> int:
    """Print the result of each text, in their order; return the number of failed ones."""
    pieces: list[asyncio.Queue[str | None]] = [asyncio.Queue() for _ in texts]  # None ends a line
    turns = asyncio.Semaphore(concurrency)
    if protocol == "http":
        client = triton_http.InferenceServerClient(address, conn_limit=concurrency, conn_timeout=TIMEOUT_SECONDS)
    else:
        client = triton_grpc.InferenceServerClient(address)

    async def ask(number: int) -> int:
        try:
            async with turns:
                async for piece in ASK[protocol](client, model, texts[number], parameters):
                    pieces[number].put_nowait(piece)
            return 0
        except Exception as error:  # each protocol has its own; a failed line does not affect others
            print(f"error: line {number + 1}: {str(error) or type(error).__name__}", file=sys.stderr)
            return 1
        finally:
            pieces[number].put_nowait(None)

    async with client:
        asked = [asyncio.create_task(ask(number)) for number in range(len(texts))]
        for line in pieces:
            while (piece := await line.get()) is not None:
                print(piece, end="", flush=True)
            print()
        return sum(await asyncio.gather(*asked))


def main(
    model: Annotated[str, typer.Argument(help="Name of the model on the server.")],
    file: Annotated[Path, typer.Argument(help="UTF-8 file, one text a line; - is standard input.")],
    protocol: Annotated[
        Literal["http", "grpc", "stream"], typer.Option(help="Protocol; stream is for a model made with --stream.")
    ] = "grpc",
    address: Annotated[
        str, typer.Option(help="Server as HOST:PORT; by default this machine, port 8000, or 8001 for gRPC.")
    ] = "",
    parameter: Annotated[list[str], typer.Option(help="Setting of model.generate as NAME=VALUE; repeatable.")] = [],  # noqa: B006
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at a time.")] = 8,
) -> None:
    """Send each line of FILE to MODEL, and print a line for each, empty if it failed."""
    parameters = dict(map(read_parameter, parameter))
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        texts = data.decode().splitlines()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read ({error.strerror}); pass a text file, or -") from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is not UTF-8 ({error.reason} at byte {error.start}); convert it") from None
    address = address.partition("://")[2] or address or f"localhost:{PORTS[protocol]}"
    if failed := asyncio.run(ask_all(protocol, address, model, texts, parameters, concurrency)):
        print(f"error: {failed} of {len(texts)} lines failed; each is named above", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
