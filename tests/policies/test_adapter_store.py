"""Adapter versions: the name, the hash, the receipt."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from agentpeft.policies.delivery.version import ack_of, compute_hash, make_version
from agentpeft.policies.messages import Floats


def weights() -> dict[str, Floats]:
    return {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(2, np.float32)}


def test_hash_is_over_sorted_names_shapes_dtypes_and_bytes() -> None:
    a, b = np.ones(2, "<f4").tobytes(), np.arange(6, dtype="<f4").tobytes()
    expected = hashlib.sha256(b"a|(2,)|<f4|" + a + b"b|(2, 3)|<f4|" + b).hexdigest()
    assert compute_hash(weights()) == expected


def test_version_has_a_name_that_carries_it() -> None:
    adapter = make_version(7, "run", weights(), 2.0)
    assert (adapter.name, adapter.version, adapter.scaling) == ("run-000007", 7, 2.0)
    assert adapter.sha256 == compute_hash(weights())


def test_hash_ignores_memory_layout() -> None:
    turned = {name: np.asfortranarray(array) for name, array in weights().items()}
    assert compute_hash(turned) == compute_hash(weights())


@pytest.mark.parametrize(
    "changed",
    [
        {"a": np.ones(2, np.float32)},
        weights() | {"b": np.arange(6, dtype=np.float32).reshape(3, 2)},
        weights() | {"a": np.array([1, np.nextafter(np.float32(1), np.float32(2))], np.float32)},
    ],
)
def test_receipt_of_changed_weights_differs(changed: dict[str, Floats]) -> None:
    adapter = make_version(1, "run", weights(), 2.0)
    assert ack_of(adapter).sha256 == adapter.sha256
    assert ack_of(replace(adapter, weights=changed)).sha256 != adapter.sha256
