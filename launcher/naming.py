"""Names that file systems, shells and Kubernetes accept, made from names that users chose."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_LABEL_LENGTH = 63


def dns_label(name: str, *, max_length: int = MAX_LABEL_LENGTH) -> str:
    """An RFC 1123 label for `name`: unchanged where it is one already, else cleaned and made unique by a hash."""
    if len(name) <= max_length and re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        return name
    cleaned = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not cleaned or not cleaned[0].isalpha():
        cleaned = f"x-{cleaned}".strip("-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{cleaned[: max_length - 7].rstrip('-')}-{digest}"


def unique_labels(names: Iterable[str], *, max_length: int = MAX_LABEL_LENGTH) -> dict[str, str]:
    """A distinct RFC 1123 label for every distinct name, in order; the same names give the same labels."""
    labels: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        if name in labels:
            continue
        label, attempt = dns_label(name, max_length=max_length), 1
        while label in used:
            attempt += 1
            label = dns_label(f"{name}#{attempt}", max_length=max_length)
        labels[name] = label
        used.add(label)
    return labels


def label_value(text: str) -> str:
    """A valid Kubernetes label value close to `text` ("" stays "")."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:MAX_LABEL_LENGTH]
    return cleaned.strip("-._")


def comment(text: object) -> str:
    """One printable line for a comment of a generated file: no newline or control character can end the comment."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(str(text).split()))
