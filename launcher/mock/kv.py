"""The mock's KV cache and its transfer: real bytes over a real socket, few of them, with the planned time on top.

The "KV" of a prompt is a digest of its tokens and the block size it was written with. Answers are derived from it, so
that a decode instance that got the wrong KV, or reads it in blocks of another size, answers wrongly without an error:
what a real connector does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

EXPIRY_S = 60.0
VOCABULARY = 50_000


def kv_digest(tokens: Sequence[int], block_tokens: int) -> bytes:
    """The KV of a prompt, written in blocks of a size."""
    text = ",".join(map(str, tokens))
    return hashlib.blake2b(f"{block_tokens}|{text}".encode(), digest_size=16).digest()


def read_with_blocks(digest: bytes, written_block_tokens: int, read_block_tokens: int) -> bytes:
    """KV read in blocks of another size is other KV."""
    if written_block_tokens == read_block_tokens:
        return digest
    return hashlib.blake2b(digest + read_block_tokens.to_bytes(4, "big"), digest_size=16).digest()


def answer_token(digest: bytes, position: int) -> int:
    """The greedy token at a position of the answer."""
    word = hashlib.blake2b(digest + position.to_bytes(4, "big"), digest_size=4).digest()
    return int.from_bytes(word, "big") % VOCABULARY


def prompt_tokens(prompt: object) -> list[int]:
    """Token ids of a prompt: as given, else one for each word."""
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return [int(item) for item in prompt]
    words = str(prompt).split() or [""]
    return [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big") for word in words]


@dataclass
class KvStore:
    """Prompts that a prefill instance keeps until their decode instance has pulled them, or they expire."""

    engine_id: str
    block_tokens: int
    expired: int = 0
    _held: dict[str, tuple[float, bytes, int]] = field(default_factory=dict)
    _next: int = 0

    def hold(self, digest: bytes, num_tokens: int, now_s: float) -> str:
        """Keep a prompt's KV; returns the id under which it can be pulled."""
        self.expire(now_s)
        self._next += 1
        key = f"{self.engine_id}-{self._next}"
        self._held[key] = (now_s + EXPIRY_S, digest, num_tokens)
        return key

    def expire(self, now_s: float) -> None:
        """Drop what nobody came for."""
        old = [key for key, (until, _, _) in self._held.items() if until < now_s]
        for key in old:
            del self._held[key]
        self.expired += len(old)

    def __len__(self) -> int:
        return len(self._held)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer `PULL <id>` with `OK <digest> <tokens> <block tokens>`, once for each id."""
        try:
            words = (await reader.readline()).decode("ascii", "replace").split()
            found = self._held.pop(words[1], None) if len(words) == 2 and words[0] == "PULL" else None
            if found is None:
                writer.write(b"GONE\n")
            else:
                writer.write(f"OK {found[1].hex()} {found[2]} {self.block_tokens}\n".encode())
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the peer went away, or is not one of ours
        finally:
            writer.close()


async def pull(host: str, port: int, key: str, read_block_tokens: int) -> tuple[bytes, int]:
    """Fetch a prompt's KV from a prefill instance: (digest, tokens). ConnectionError when it is not there any more."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"PULL {key}\n".encode())
        words = (await reader.readline()).decode().split()
    finally:
        writer.close()
    if len(words) != 4 or words[0] != "OK":
        raise ConnectionError(f"no KV under {key}")
    return read_with_blocks(bytes.fromhex(words[1]), int(words[3]), read_block_tokens), int(words[2])
